"""The families of models that Ravnest trains: GPT-2, and a ResNet on digits."""
