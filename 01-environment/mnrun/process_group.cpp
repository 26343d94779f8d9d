// process_group
