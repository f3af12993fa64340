"""Ray Train: starts worker groups, hands them candidates, and ends them."""
