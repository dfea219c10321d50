"""What a run gives: draws, their summary, adjustment, efficiency and the certificate."""
