"""What a transport needs of asyncio: a loop with exact timers, a nursery for tasks, futures."""
