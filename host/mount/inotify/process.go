package inotify

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
)

// processName is the program name (the first argument) with which this program runs as an event process.
const processName = "artifactfs-events"

// limit is the maximum run time of an event process.
const limit = 2 * time.Second

// Exit codes of an event process.
const (
	exitDone  = 0
	exitInput = 2 // the process that started this one was killed before it had sent all input
	// the mount is not visible in this mount namespace, or does not recognise the requests of this process
	exitUnknown = 3
	exitLate    = 4
)

// First bytes of the records in the input of an event process, in addition to those of fuse.EventKind. A name follows
// this byte, and a zero byte ends the record.
const (
	recordDir   = 'd' // directory of the names in the records that follow, relative to the root of the mount
	recordTouch = 't' // event for the directory itself
	recordEnd   = '.' // end of the input
)

func init() {
	if IsProcess(os.Args) {
		runtime.LockOSThread() // requests are recognised by the id of the main thread
	}
}

// IsProcess reports whether a program with these arguments has to run as an event process. The program must then call
// Run.
func IsProcess(args []string) bool { return len(args) == 2 && filepath.Base(args[0]) == processName }

// Run makes the system calls for the changes in the input, in the mount at dir, and returns the exit code of the event
// process. It must run on the main thread.
func Run(dir string, input io.Reader) int {
	time.AfterFunc(limit, func() { os.Exit(exitLate) })
	text, err := io.ReadAll(input)
	records := strings.Split(string(text), "\x00")
	if n := len(records) - 2; err != nil || n < 0 || records[n] != string(rune(recordEnd)) {
		return exitInput
	}
	root, err := openRoot(dir)
	if err != nil {
		return exitUnknown
	}
	var st unix.Stat_t
	if err := unix.Fstatat(root, fuse.EventProbe, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return exitUnknown
	}
	at := -1
	for _, r := range records[:len(records)-2] {
		switch kind, name := r[0], r[1:]; {
		case kind == recordDir:
			unix.Close(at)
			at = openDir(root, name)
		case at < 0: // the directory was removed or moved
		case kind == recordTouch:
			touch(at, "", unix.AT_EMPTY_PATH)
		default:
			raise(at, name, fuse.EventKind(kind))
		}
	}
	return exitDone
}

// openRoot opens the root of the mount at dir. If possible it opens a copy of the mount, which does not keep the mount
// busy.
func openRoot(dir string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return fd, nil
}

// openDir opens the directory path of the mount whose root is the descriptor root. It returns a negative number if the
// directory does not exist.
func openDir(root int, path string) int {
	if path == "" {
		path = "."
	}
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1
	}
	return fd
}

// raise makes the system call that stands for a change of the kind kind of a name in the directory with the descriptor
// at.
func raise(at int, name string, kind fuse.EventKind) {
	var err error
	switch kind {
	case fuse.Created:
		err = unix.Mknodat(at, name, unix.S_IFREG|0o600, 0)
	case fuse.CreatedDir:
		err = unix.Mkdirat(at, name, 0o700)
	case fuse.Removed:
		err = unix.Unlinkat(at, name, 0)
	case fuse.RemovedDir:
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	case fuse.Replaced:
		touch(at, name, unix.AT_SYMLINK_NOFOLLOW)
	}
	if errors.Is(err, unix.EEXIST) { // a program has already looked up the new name
		touch(at, name, unix.AT_SYMLINK_NOFOLLOW)
	} else if err != nil {
		touch(at, "", unix.AT_EMPTY_PATH)
	}
}

// touch changes the modification time of a file, so that the kernel raises IN_MODIFY. It ignores errors, because an
// error means that the name has changed again.
func touch(at int, name string, flags int) {
	_ = unix.UtimesNanoAt(at, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, flags)
}
