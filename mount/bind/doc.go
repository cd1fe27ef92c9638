// Package bind mounts plain directories over paths in a mount: the backings of redirects, and the git directory for
// containers, which see only the mount. The kernel serves these directories without a request to this process, and they
// outlive the process: a successor finds them in the mount table.
//
// The package opens paths inside a mount without following symbolic links, and mounts on the descriptor, because the
// owner of the files could otherwise redirect a mount to a directory outside by a symbolic link.
// the way that leads out of the mount.
package bind
