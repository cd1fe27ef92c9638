// Package overlay stores everything in a working tree that differs from the base tree. It does not know the base tree.
// The changed names and inodes are in memory (package state) and in a log (package wal), changed contents in plain
// files.
//
// # Promises
//   - A change that was acknowledged survives the death of the process by any signal.
//   - After power loss everything that was fsynced is present, and the rest is an earlier state of the tree: never a
//     file of the base tree replaced by bytes that did not reach the disk.
//   - A change that failed (full disk, quota, I/O error) did not happen, and the next one works when space is free again.
//   - Nothing is deleted unless it is known to be dead: contents files without an owner and cut log tails go to lost+found.
//     Only after a takeover are contents files without an owner deleted: the log is complete, and no reply has named them.
//
// # Terms
//   - node: a file system object by number. Numbers below 1<<32 are the base tree's, others the layer's own.
//   - promoted: a base node whose inode is in the layer, because an attribute or the contents were changed.
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
//   - pin: the right to read a contents file as it was at one moment. Bytes that a change is about to overwrite are copied for
//     the pin's reader to a file without a name; the contents file, the log and their promises do not change with pins.
//     A pin belongs to this process and ends with it. A dead contents file is removed after its last pin.
//   - kept: a removed or overwritten file that is not in a checkpoint yet. Its record is in the log, and its contents are
//     pinned by every process that opens the layer until the record is removed.
//   - takeover: the kernel still has the mount of a dead process, with its lookup counts and unanswered requests.
//   - rebooted: the host went down after Close. Close does not sync contents, so their sizes are compared with the log.
//
// # Steps of a write
//
//	File.WriteAt      first write: create contents/.., Layer.Update {inode: content, dirty}   (log, then state)
//	                  pwrite
//	                  if the file grew: its size in the state, not in the log
//	janitor           a few seconds later: fdatasync if unsettled, Layer.Update {inode: size, clean}
//	File.Sync         fdatasync contents file, fsync its directory, Layer.Update {inode: settled}, fdatasync log
//
// # Directory
//
//	log          the log
//	contents/    contents files
//	lost+found/  files without an owner after a crash, cut log tails, damaged logs
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
// Two Files are locked in the order of their nodes. Only File.mu and Layer.rotating are held while waiting for the disk,
// except that the log may have to grow under Layer.mu. Layer.cut is held shared while contents change, until their size
// is in the state too, and exclusively at a moment, while memory is read.
package overlay
