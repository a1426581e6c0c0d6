"""How a Service chooses among its endpoints, and what happens when endpoints leave."""
