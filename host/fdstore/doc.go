// Package fdstore keeps the descriptors of daemons while their processes are replaced, as a service manager with a
// descriptor store does (FileDescriptorStoreMax of systemd), but for daemons that run in containers. Server is the
// process that keeps descriptors, and Client is a daemon's connection to it. A mount therefore survives the end of
// every process of its daemon, as long as the Server runs, and a daemon that starts later continues it. If the Server
// ends, the daemon connects to the next Server and stores its descriptors again.
//
// The two processes exchange messages of package keeper over a SOCK_SEQPACKET socket in the file system. The daemon
// sends
//
//	X_DAEMON=name             first, with the read end of a pipe whose write end all processes of the daemon have: see below;
//	                          with X_AFTER=1 if another daemon runs, which may have to connect to this Server again
//	FDSTORE=1 FDNAME=n        and a descriptor: keep it in place of an earlier one with this name
//	FDSTOREREMOVE=1 FDNAME=n  close the descriptor with this name
//	X_COMPLETE=1              close the descriptors that were not stored through this connection
//	BARRIER=1                 and a descriptor: close it, which shows that the messages before were handled
//	X_LIST=1                  instead of X_DAEMON: describe what is kept, in a message for each daemon
//
// and the Server sends
//
//	X_WAIT=1                  processes of an earlier daemon with this name still run; the answer follows when they have ended
//	FDNAME=n:n                and as many descriptors: all that are kept for this name
//	START=1                   all descriptors were sent
//
// The Server may pass the descriptors on only when no process of the earlier daemon runs, because a request that the
// earlier daemon reads from a device after the successor has asked the kernel for unanswered requests would never be
// answered. The end of a connection does not show this: it belongs to the supervisor, and the worker may run a moment
// longer than the supervisor. The pipe shows it: the kernel closes its last write end with the last process.
//
// Any number of daemons may wait for the end of the same earlier daemon, for example one in another container that
// continues the mounts at once, and one of a newer version. The daemon that connected last is the next to get the
// descriptors.
package fdstore

import (
	"errors"
	"time"
)

// The keys of the messages of a Server and its Clients that package keeper does not define.
const (
	keyDaemon   = "X_DAEMON"
	keyWait     = "X_WAIT"
	keyAfter    = "X_AFTER" // "1": another daemon runs, which may not have connected to this Server yet
	keyComplete = "X_COMPLETE"
	keyBarrier  = "BARRIER"
	// requests a description of each daemon; the value is "1". A request has either this key or X_DAEMON.
	keyList    = "X_LIST"
	keyFiles   = "X_FILES" // number of descriptors that are kept for a daemon
	keyMounts  = "X_MOUNTS"
	keyRunning = "X_RUNNING" // "1": processes of the daemon run
	keyWaiting = "X_WAITING" // number of daemons that wait for the descriptors
)

// ErrInUse is returned by Listen if another Server uses the socket.
var ErrInUse = errors.New("another process keeps descriptors at this socket")

const (
	helloTime = 5 * time.Second // maximum time from the start of a connection to its first message
	// patience is the maximum time that a daemon waits, before it gets the descriptors, for two events: the end of the
	// last process of an earlier daemon that has no connection any more (a thread that hangs in the kernel keeps its
	// process, and the pipe), and the connection of another daemon, which runs, to a new Server.
	patience = 20 * time.Second
)

// deviceSuffix is the suffix of the name of the descriptor of a mount's /dev/fuse (see package takeover).
const deviceSuffix = ".device"
