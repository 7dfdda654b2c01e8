"""The futures by which senders learn that their memory is free. The one rule: a sender that is gone is no news."""

import asyncio


def settle(freed: asyncio.Future[None], error: BaseException | None = None) -> None:
    """Tell the sender that its memory is free, or why what it held will not be sent; the first word stays."""
    if freed.done():
        return
    if error is None:
        freed.set_result(None)
    else:
        freed.set_exception(error)
        freed.exception()  # else the loop would report an error that nobody awaits
