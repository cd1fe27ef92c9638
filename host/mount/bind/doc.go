// Package bind bind-mounts plain directories over paths in a mount. A plain directory is either the backing of a
// redirect, where the files of the redirected path are stored, or the git directory, for containers whose processes see
// only the mount. The kernel serves these directories without a request to this process. The bind mounts outlive the
// process, and a successor finds them in the mount table.
//
// The package opens paths inside a mount without following symbolic links, and mounts over the open descriptor.
// Otherwise the owner of the files could replace a directory by a symbolic link at the right moment, and so make this
// process mount over a directory outside the mount.
package bind
