"""AgentTrainingJob and every validated setting."""
