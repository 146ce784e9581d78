"""While a run lasts its user sees that it goes on."""

import asyncio

from benchmarks.progress import Progress, told


def test_a_line_counts_what_is_over_and_what_is_under_way() -> None:
    progress = Progress(64)
    for _ in range(3):
        progress.request_started()
    progress.request_ended(failed=False)
    assert progress.line(30.2) == "  30 s: 1 of 64 requests done, 2 in flight"
    progress.request_ended(failed=True)
    assert progress.line(41) == "  41 s: 2 of 64 requests done (1 failed), 1 in flight"
    assert Progress(None).line(10) == "  10 s: 0 requests done, 0 in flight"


async def test_lines_come_while_the_run_lasts_and_end_with_it() -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    async with told(Progress(1), lines.put_nowait, lambda: 7.0, every_s=0.001):
        assert await asyncio.wait_for(lines.get(), 5) == "  7 s: 0 of 1 requests done, 0 in flight"
    while not lines.empty():
        lines.get_nowait()
    await asyncio.sleep(0.02)
    assert lines.empty()
