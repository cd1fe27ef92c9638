package caller

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// TestThreadThatDoesNotSleepYet checks that the system call of a thread is found if the thread still runs for a while
// after its request, as on a busy host.
func TestThreadThatDoesNotSleepYet(t *testing.T) {
	for _, c := range []struct {
		runs time.Duration
		want bool
	}{{0, true}, {500 * time.Millisecond, true}, {time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			call, ok := awaitCall(func() (proc.SystemCall, bool, bool) {
				running := time.Since(start) < c.runs
				return proc.SystemCall{Number: unix.SYS_OPENAT}, running, !running
			})
			if ok != c.want || ok && call.Number != unix.SYS_OPENAT {
				t.Errorf("system call of a thread that runs for %v: got %+v, %v, want %v", c.runs, call, ok, c.want)
			}
			if took := time.Since(start); took > min(c.runs, sleepTime)+sleepPoll {
				t.Errorf("a thread that runs for %v was waited for during %v", c.runs, took)
			}
		})
	}
}

func TestThreadsThatNeedASize(t *testing.T) {
	if me := NeedsSize(uint32(os.Getpid()), 0o644); !me {
		t.Error("NeedsSize of a thread in an unknown call is false, want true")
	}
	if !NeedsSize(0, 0o644) {
		t.Error("NeedsSize of process 0 is false, want true")
	}
}

func TestUse(t *testing.T) {
	const high, low = 0x7ffe7e510f50, 0xffe7e510
	for _, c := range []struct {
		call sysCall
		want use
	}{
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_WRONLY}, high}, useAny},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_WRONLY | unix.O_NONBLOCK}, high}, useTouch},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_WRONLY | unix.O_TRUNC}, high}, useChange},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_RDWR | unix.O_TRUNC}, high}, useChange},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_RDWR}, high}, useAny},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_RDONLY | unix.O_CREAT}, high}, useAny},
		{sysCall{unix.SYS_OPENAT, [6]uint64{2: unix.O_WRONLY | unix.O_TRUNC}, low}, useAny},
		{sysCall{unix.SYS_OPENAT2, [6]uint64{}, high}, useOpenHow},
		{sysCall{unix.SYS_NEWFSTATAT, [6]uint64{}, high}, useStat},
		{sysCall{unix.SYS_NEWFSTATAT, [6]uint64{3: unix.AT_EMPTY_PATH}, high}, useAny},
		{sysCall{unix.SYS_STATX, [6]uint64{3: unix.STATX_BASIC_STATS}, high}, useStat},
		{sysCall{unix.SYS_STATX, [6]uint64{3: unix.STATX_TYPE | unix.STATX_MODE}, high}, useNone},
		{sysCall{unix.SYS_READ, [6]uint64{}, high}, useAny},
		{sysCall{unix.SYS_FSTAT, [6]uint64{}, high}, useAny},
		{sysCall{unix.SYS_LINKAT, [6]uint64{}, high}, useChange},
	} {
		if got := c.call.use(); got != c.want {
			t.Errorf("use of call %+v: got %d, want %d", c.call, got, c.want)
		}
	}
	const ext4 = "29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
	const over = "96 29 0:48 / /m rw shared:52 master:3 - overlay overlay rw,lowerdir=/a\n"
	for mounts, want := range map[string]bool{ext4: false, ext4 + over: true, over + ext4: true, "nonsense\n": true} {
		if got := stacks([]byte(mounts)); got != want {
			t.Errorf("stacks(%q) = %v", mounts, got)
		}
	}
	for cmdline, want := range map[string]bool{"rm\x00f\x00": false, "rm\x00-rf\x00dir\x00": false,
		"rm\x00-i\x00f\x00": true, "rm\x00-rI\x00f\x00": true, "rm\x00--interactive=once\x00": true} {
		if got := asks(strings.Split(cmdline, "\x00")); got != want {
			t.Errorf("asks(%q) = %v", cmdline, got)
		}
	}
}
