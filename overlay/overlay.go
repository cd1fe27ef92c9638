// Package overlay keeps what a mount changed: the upper layer of a working tree, whose lower layer, the base tree,
// it does not know. It holds the changed namespace in memory (package state), carries it in a log (package wal), and
// keeps changed contents in plain files.
//
// # Promises
//   - A change that was acknowledged survives the death of the process by any signal.
//   - After power loss everything that was fsynced is there, and the rest is an earlier state of the tree: never a
//     file of the base tree replaced by bytes that did not reach the disk.
//   - A change that failed (full disk, quota, I/O error) did not happen, and the next one works when there is room again.
//   - Nothing is deleted that is not known to be dead: contents without an owner and cut log tails go to lost+found. Only
//     after a takeover contents without an owner are known to be what nobody was told of.
//
// # Terms
//   - node: a file system object by number. Numbers below 1<<32 are the base tree's, others the layer's own.
//   - promoted: a base node whose inode is in the layer, because something of it was changed.
//   - content: the bytes of one regular file, in contents/DDDDDD/NNNNNN; its number is never used twice.
//   - copy-up: the making of a content from what the base tree has.
//   - dirty: size and mtime in the log may be behind the content file's own; after a kill that file is asked.
//   - unsettled: a content in place of a base file's that is not known to be on disk. Power loss sends it to lost+found
//     and the file back to the base.
//   - dead: a content that no inode names any more. It is removed once the log that says so is on disk.
//   - look-up: the kernel was told of a node, and may use its number until it forgets it. A node without a name lives for
//     as long as it has a look-up: somebody may have it open.
//   - request: what the kernel asked for, by its number. A record carries that of the request that it was made for.
//   - moment: when nothing is changed, neither names nor contents (Freeze).
//   - pin: a content is to be read as it was at a moment. What a change is about to overwrite is kept for the pin's reader
//     in a file without a name; the content itself, the log and what is promised of them are the same with pins and without.
//     A pin is this process's own and ends with it. A dead content is removed behind its last pin.
//   - kept: a removed or overwritten file that a checkpoint has yet to hold. Its record is in the log, and its content is
//     pinned by every process that opens the layer until the record is removed.
//   - takeover: the kernel still has the mount that a process served which is dead, look-ups and unanswered requests too.
//
// # The way of a write
//
//	File.WriteAt      first write: create contents/.., Layer.Update {inode: content, dirty}   (log, then state)
//	                  pwrite
//	                  file grew: its size in the state, not in the log
//	settling          a few seconds later: fdatasync if unsettled, Layer.Update {inode: size, clean}
//	File.Sync         fdatasync content, fsync its directory, Layer.Update {inode: settled}, fdatasync log
//
// # Directory
//
//	log          the log
//	contents/    contents
//	lost+found/  what could not be placed after a crash
//	lookups      how often the kernel was told of own nodes: for who takes the mount over
//	lock         held by the process that has the layer open
//
// # Lock order
//
//	Layer.cut -> File.mu -> Layer.mu -> inside wal
//	Layer.cut -> Layer.mu
//	File.mu -> Pin.mu -> pins.mu (a leaf)
//	Layer.mu -> pins.mu
//	File.mu -> files.mu, contents.mu (leaves)
//	Layer.rotating -> Layer.mu
//
// Two Files are locked in the order of their nodes. The disk is waited for under File.mu and rotating alone, except
// that the log may have to grow under Layer.mu. Layer.cut is held shared by whoever changes contents, until their size is
// in the state too, and whole at a moment, for as long as it takes to look at memory.
package overlay
