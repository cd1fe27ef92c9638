// Package host contains the packages for one machine with mounts: the daemon and its workers, the mounts, the sessions
// on this host, and the state directory. It has no code of its own.
//
// Inputs: requests of commands (daemon, through package control), requests of the kernel (fuse, through a mount),
// requests of git in a mount (mount/gitside), and the death of a process (supervisor).
//
// Outputs: replies and errors for people and programs (fault), pushes to session remotes (session/agent), records in
// the state directory (statedir), and metrics.
//
// The steps of `artifactfs mount`: daemon.Daemon.Mount checks the request and registers a mount.Mount; Mount.Start
// locks the home of the mount (mount/home), opens the store of the remote (mount/contents, package fetch), fetches the
// commit or the checkpoint to start from (mount/origin), opens the working tree and attaches it to the kernel
// (mount/attach, packages worktree and fuse), and replies. The git directory, the history and the agent of the session
// follow in the background. If the process dies, the supervisor starts a worker that takes over each mount with the
// descriptors that the supervisor has kept (mount/takeover).
package host
