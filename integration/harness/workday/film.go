package workday

import (
	"context"
	"crypto/sha1"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// To film a step means: after each system call that may have changed a file, the process is stopped (ptrace(2)) and the
// state of the tree is recorded. To read the tree in a loop while the step runs is not sufficient: this found 16 of the
// 189 states during a git checkout of 80 files, so most correct checkpoints would be rejected.

// temporary matches names that tools give to temporary files.
var temporary = regexp.MustCompile(`(^|/)(sed|\.merge_file_)[A-Za-z0-9]{6}$`)

// settled returns the path without the random part of a temporary name, so that the path is the same in each run of a
// step.
func settled(path string) string { return temporary.ReplaceAllString(path, "$1$2") }

// digest returns the object ID that git computes for a blob.
func digest(content []byte) string {
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...)))
}

// value returns the mode of a file and the object ID of its contents as text. It reads the contents only if they may
// have changed since the last call.
func (f *film) value(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	now := cached{st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), ""}
	var clock unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &clock)
	was, ok := f.cache[path]
	// recent changes are not cached, because the clocks of file systems are coarse
	if now.value = was.value; ok && was == now && clock.Nano()-now.ctime > 50e6 {
		return was.value, nil
	}
	mode := "100644"
	var content []byte
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		var target string
		target, err = os.Readlink(path)
		mode, content = "120000", []byte(target)
	} else {
		if st.Mode&0o100 != 0 {
			mode = "100755"
		}
		content, err = os.ReadFile(path)
	}
	if err != nil {
		return "", err
	}
	now.value = mode + " " + digest(content)
	f.cache[path] = now
	return now.value, nil
}

// callInfo is the struct ptrace_syscall_info of the kernel.
type callInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	nr   uint64 // number of the system call if op is opEnter, its result if op is opExit
	args [6]uint64
	_    [2]uint64
}

const (
	opEnter = 1
	opExit  = 2
)

// harmless contains the numbers of system calls that change no file. The tree is examined after all others.
var harmless = map[uint64]bool{
	unix.SYS_READ: true, unix.SYS_PREAD64: true, unix.SYS_LSEEK: true, unix.SYS_MMAP: true, unix.SYS_MUNMAP: true,
	unix.SYS_MPROTECT: true, unix.SYS_BRK: true,
	unix.SYS_RT_SIGACTION: true, unix.SYS_RT_SIGPROCMASK: true, unix.SYS_GETDENTS64: true, unix.SYS_FCNTL: true,
	unix.SYS_GETCWD: true, unix.SYS_EXECVE: true,
	unix.SYS_WAIT4: true, unix.SYS_FSTAT: true, unix.SYS_CLOSE: true, unix.SYS_CLONE: true, unix.SYS_CLONE3: true,
	unix.SYS_EXIT_GROUP: true, unix.SYS_DUP: true,
	unix.SYS_PIPE2: true, unix.SYS_GETPID: true, unix.SYS_FUTEX: true, unix.SYS_IOCTL: true, unix.SYS_FACCESSAT: true,
	unix.SYS_READLINKAT: true, unix.SYS_STATX: true,
	unix.SYS_CHDIR: true, unix.SYS_PRLIMIT64: true, unix.SYS_GETRANDOM: true, unix.SYS_SET_TID_ADDRESS: true,
	unix.SYS_SET_ROBUST_LIST: true, unix.SYS_RSEQ: true,
}

func init() {
	for _, nr := range looking {
		harmless[nr] = true
	}
}

// record runs the step of a ledger entry and films it.
func (f *film) record(ctx context.Context, e Entry) error {
	failed := make(chan error, 1)
	go func() { failed <- f.traced(ctx, e) }()
	if err := <-failed; err != nil {
		return fmt.Errorf("film %s: %w", e.Step, err)
	}
	return nil
}

func (f *film) traced(ctx context.Context, e Entry) error {
	// not unlocked, so that the thread ends with the goroutine and no other goroutine runs on the tracing thread
	runtime.LockOSThread()
	if err := f.take(); err != nil {
		return err
	}
	cmd := e.command(ctx, f.p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	first := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(first, &status, unix.WALL, nil); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(first, options); err != nil {
		return err
	}
	changing := map[int]bool{} // processes that are in a system call that may change a file
	known := map[int]bool{first: true}
	pid, signal := first, 0
	for {
		if err := unix.PtraceSyscall(pid, signal); err != nil && err != unix.ESRCH {
			return err
		}
		var err error
		for pid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err == unix.EINTR; {
			pid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		}
		for err == nil && (status.Exited() || status.Signaled()) {
			delete(known, pid)
			if len(known) == 0 {
				return f.take()
			}
			pid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		}
		if err == unix.ECHILD {
			return f.take()
		}
		if err != nil {
			return err
		}
		signal = 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if err := f.call(pid, changing); err != nil {
				return err
			}
		case stop == unix.SIGTRAP && status.TrapCause() >= 0:
		case stop == unix.SIGSTOP && !known[pid]: // the process was just created
			known[pid] = true
		default:
			known[pid] = true
			signal = int(stop)
		}
	}
}

// call processes the start or the end of a system call of a traced process.
func (f *film) call(pid int, changing map[int]bool) error {
	var info callInfo
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0); e != 0 {
		if e == unix.ESRCH {
			return nil
		}
		return e
	}
	switch info.op {
	case opEnter:
		changing[pid] = !harmless[info.nr] && (info.nr != unix.SYS_OPENAT ||
			info.args[2]&(unix.O_WRONLY|unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC) != 0)
	case opExit:
		if changing[pid] {
			changing[pid] = false
			return f.take()
		}
	}
	return nil
}
