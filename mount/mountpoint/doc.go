// Package mountpoint prepares the directories of mounts, and finds what prevents mounting and unmounting: other file
// systems, dead mounts, and processes that use a mount. It reads the mount table and /proc, and never accesses files of
// a mount, because this process itself might have to answer the request.
package mountpoint
