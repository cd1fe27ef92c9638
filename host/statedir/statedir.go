// Package statedir reads and writes a state directory: the homes of mounts with their records, the trash, the locks of
// stores, the registry of the mounts that a restart restores, and the failures that are reported to users.
//
//	mounts/ID/             home of a mount: lock, session.json, overlay/, git/, session.git/
//	mounts.lock            held while homes are created, listed, locked and renamed
//	trash/SESSION.UNIX     homes of deleted sessions
//	shares/ID/             contents files that the overlays of several homes use
//	stores/NAME/           objects that were fetched from one remote (package fetch)
//	registry/HASH.json     mount that is restored after a restart of the machine
//	failed/HASH.json       mount that ended because of a failure
//	NAME-NUMBER.tmp        temporary file or directory of a command; locked while it is used, else removed when a daemon starts
//
// This package does not communicate with running mounts. Several processes may use the same state directory, because
// file locks guard all of its parts.
package statedir
