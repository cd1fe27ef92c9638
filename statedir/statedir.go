// Package statedir reads and writes a state directory: the homes of mounts and their records, the trash, the locks of stores,
// the registry of mounts to restore, and the failures to report.
//
//	mounts/ID/             home of a mount: lock, session.json, overlay/, git/, session.git/
//	mounts.lock            held while homes are created, listed, locked and renamed
//	trash/SESSION.UNIX     homes of deleted sessions
//	stores/NAME/           objects that were fetched from one remote (package fetch)
//	registry/HASH.json     mounts that are restored after a restart of the machine
//	failed/HASH.json       mounts that ended because of a failure
//
// The package does not access running mounts. Several processes may use one state directory: file locks guard everything.
package statedir
