// Package overlay stores everything in a working tree that differs from the base tree. It does not know the base tree. The
// changed names and inodes are in memory (package state) and in a log (package wal), changed contents in plain files.
//
// # Promises
//   - A change that was acknowledged survives the death of the process by any signal.
//   - After power loss everything that was fsynced is there, and the rest is an earlier state of the tree: never a
//     file of the base tree replaced by bytes that did not reach the disk.
//   - A change that failed (full disk, quota, I/O error) did not happen, and the next one works when there is room again.
//   - Nothing is deleted that is not known to be dead: contents without an owner and cut log tails are moved to lost+found.
//     Only after a takeover are contents without an owner deleted: the log is complete, and no reply has named them.
//
// # Terms
//   - node: a file system object by number. Numbers below 1<<32 are the base tree's, others the layer's own.
//   - promoted: a base node whose inode is in the layer, because something of it was changed.
//   - contents file: the bytes of one regular file, in contents/DDDDDD/NNNNNN; its number is never used twice. The code
//     calls it a content.
//   - copy-up: the creation of a contents file from the contents in the base tree, before they are changed.
//   - dirty: the contents file may be larger and younger than the log says; after a kill size and mtime are read from it.
//   - unsettled: a contents file that replaces contents of the base tree and is not known to be on disk. After power loss
//     it is moved to lost+found, and the file has the base tree's contents again.
//   - dead: a contents file that no inode names any more. It is removed once the log record that says so is on disk.
//   - lookup count: how many references the kernel holds on a node. A node without a name lives until its count is zero:
//     a program may have it open.
//   - request: a request of the kernel, by its number. A log record has the number of the request that it was made for.
//   - moment: an instant at which neither names nor contents change (Freeze).
//   - pin: a content is to be read as it was at a moment. What a change is about to overwrite is kept for the pin's reader
//     in a file without a name; the content itself, the log and what is promised of them are the same with pins and without.
//     A pin is this process's own and ends with it. A dead content is removed behind its last pin.
//   - kept: a removed or overwritten file that is not in a checkpoint yet. Its record is in the log, and its contents are
//     pinned by every process that opens the layer until the record is removed.
//   - takeover: the kernel still has the mount of a dead process, with its lookup counts and unanswered requests.
//   - rebooted: the host went down after Close. Close does not sync contents, so their sizes are compared with the log.
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
//	lookups      lookup counts of own nodes, for a takeover
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
// that the log may have to grow under Layer.mu. Layer.cut is held shared while contents change, until their size is in the
// state too, and exclusively at a moment, while memory is read.
package overlay
