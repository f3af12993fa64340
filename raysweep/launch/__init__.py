"""Ray Train: starts worker groups, hands them candidates, and ends them."""

import os

# Ray reads it when it is imported. It prints a paragraph for every worker that dies, with advice that is wrong here:
# workers are ended on purpose, and a death that nobody meant gets its row and its reason.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    r"A worker died or was killed while executing a task|killed due to (memory|the node running)",
)
