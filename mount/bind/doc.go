// Package bind mounts plain directories over places in a mount: redirects, and the git directory for those that see nothing but the
// mount. The kernel serves these directories without a request to this process, and they outlive it: a successor finds them in the
// table of mounts.
//
// Paths inside a mount are opened without following links and mounted on by descriptor: the owner of the files could put a link in
// the way that leads out of the mount.
package bind
