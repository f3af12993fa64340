"""Ray Tune: proposes candidates, runs them as trials, confirms the best."""
