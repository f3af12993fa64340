"""The training process: builds one candidate's model and engine, trains a few steps, measures them."""
