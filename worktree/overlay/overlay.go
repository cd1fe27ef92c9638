// Package overlay stores everything in a working tree that differs from the base tree. It does not know the base tree.
// The changed names and inodes are in memory (package state) and in a log (package wal), changed contents in plain
// files.
//
// # Promises
//   - A change that was acknowledged survives the death of the process by any signal.
//   - After power loss, everything that was fsynced is present. Everything else may be an earlier state of the tree,
//     but a file of the base tree is never replaced by bytes that did not reach the disk.
//   - A change that failed (full disk, quota, I/O error) has no effect, and changes succeed again as soon as there is
//     space.
//   - Nothing is deleted unless it is known to be unused: contents files that no inode names and the cut tail of a log
//     are moved to lost+found. Contents files without an owner are deleted only after a takeover, because then the log
//     is complete and no reply to the kernel has named them.
//
// # Terms
//   - node: a file system object, identified by a number. Numbers below 1<<32 belong to the base tree, all others to
//     the layer (own nodes).
//   - promoted: said of a base node whose inode is stored in the layer because an attribute or the contents were
//     changed.
//   - contents file: the bytes of one regular file, stored in contents/DDDDDD/NNNNNN. Its number is never used twice.
//     Identifiers in the code call a contents file a content.
//   - copy-up: the creation of a contents file from the contents in the base tree, before they are changed.
//   - dirty: said of an inode whose contents file may be larger and have a later mtime than the log records. After the
//     process was killed, recovery reads both from the contents file.
//   - unsettled: said of a contents file that replaces contents of the base tree and may not be on disk yet. After
//     power loss it is moved to lost+found, and the file has the base tree's contents again.
//   - dead: said of a contents file that no inode names any more. It is removed once the log record that released it is
//     on disk.
//   - sealed: said of a contents file that does not change any more and may be used by other overlays. It is in a
//     share, a directory outside of the overlay (see Sealing).
//   - lookup count: the number of references that the kernel holds on a node. A node without a name exists until its
//     count is zero, because a program may have it open.
//   - request: a FUSE request of the kernel, identified by its number. The log record of a change contains the number
//     of the request that caused the change.
//   - moment: an instant at which neither names nor contents change (see Freeze).
//   - pin: the right to read a contents file as it was at one moment. Bytes that are about to be overwritten are first
//     copied to a file without a name, and the pin's reader gets them from there. A pin changes neither the contents
//     file nor the log nor the promises above. It belongs to this process and ends with it. A dead contents file is
//     removed after its last pin was released.
//   - kept: said of a removed or overwritten file that no checkpoint contains yet. Its record is in the log, and every
//     process that opens the layer pins its contents until the record is removed.
//   - takeover: a new process opens the layer while the kernel still has the mount of the previous, dead process, with
//     its lookup counts and unanswered requests.
//   - rebooted: the host was restarted after Close. Close does not sync contents, so Open compares the sizes of the
//     contents files with the log.
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
//	contents/    contents files; after a seal for the share ID: contents-ID/
//	lost+found/  files without an owner after a crash, cut log tails, damaged logs
//	lookups      lookup counts of own nodes, for a takeover
//	shares       list of the shares that the log names
//	lock         held by the process that has the layer open
//
// # Lock order
//
//	contents.sealing -> File.separating -> Layer.cut -> File.mu -> Layer.mu -> inside wal
//	Layer.cut -> Layer.mu
//	File.mu -> Pin.mu -> pins.mu (a leaf)
//	Layer.mu -> pins.mu
//	File.mu -> files.mu, contents.mu (leaves)
//	Layer.rotating -> Layer.mu
//
// Two Files are locked in the order of their node numbers. While a goroutine waits for the disk, it may hold File.mu,
// File.separating, contents.sealing and Layer.rotating but no other lock, with one exception: the log may have to grow
// under Layer.mu. Layer.cut is held shared from before contents change until the state has their new size, and
// exclusively at a moment, while memory is read. Layer.mu is then only reserved (see stateLock).
package overlay
