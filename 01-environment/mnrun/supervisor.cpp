// supervisor
