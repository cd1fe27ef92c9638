// Package statedir reads and writes a state directory: the homes of mounts and their records, the trash, the locks of stores, the
// registry of mounts to restore, and the failures that are still to be reported.
//
//	mounts/ID/             home of a mount: lock, session.json, overlay/, git/, session.git/
//	mounts.lock            held while homes are created, listed, locked and renamed
//	trash/SESSION.UNIX     homes of deleted sessions
//	stores/NAME/           what was fetched from one remote (package fetch)
//	registry/HASH.json     mounts that are restored after a restart of the machine
//	failed/HASH.json       mounts that ended because of a failure
//
// It knows nothing of a running mount. Several processes may use one state directory: everything here is guarded by file locks.
package statedir
