"""Small asyncio tools: a loop with exact timers, a nursery for tasks, futures."""
