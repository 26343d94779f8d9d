// agents
