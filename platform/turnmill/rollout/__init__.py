"""Agent loops, which alternate policy and environment or tools."""
