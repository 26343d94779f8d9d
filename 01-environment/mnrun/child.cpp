// child
