// Package host is the folder of one machine with mounts: the daemon and its workers, the mounts, the sessions on this host, and the state
// directory.
//
// In:  requests of commands (daemon, through package control), requests of the kernel (fuse, through a mount), questions of git in a mount
// (mount/gitside), the death of a process (supervisor).
//
// Out: replies and errors for people and programs (fault), pushes to session remotes (session/agent), records in the state directory
// (statedir), metrics.
//
// The way of `artifactfs mount`: daemon.Daemon.Mount checks the request and registers a mount.Mount; Mount.Start takes
// the home of the mount (mount/home), opens the store of the remote (mount/contents, package fetch), acquires the
// commit or the checkpoint to start from (mount/origin), opens the working tree and mounts it (mount/attach, packages
// worktree and fuse), and replies. The git directory, the history and the agent of the session follow in the
// background. If the process dies, the supervisor starts a worker that takes over each mount with the descriptors that
// it kept (mount/takeover).
package host
