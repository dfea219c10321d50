"""What only researchers need: exact finite chains, the checks of the theorems, the paper's study and its contrast."""
