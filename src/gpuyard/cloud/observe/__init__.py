"""What a cloud is seen to be: its rows parsed once, and the views of it that ledger, planners and advice go by."""
