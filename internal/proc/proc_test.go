package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 1 0 -1 4194304 100 0 0 0 1 20 300 4000 20 0 1 0 1234 0 0"
	s, err := ParseStat([]byte("77 (git (a) b)" + rest))
	want := Stat{Name: "git (a) b", State: 'S', Parent: 1, Group: 2, Ran: 4321 * Tick, Start: 1234}
	if s != want || err != nil || s.Started() != 12340*time.Millisecond {
		t.Errorf("stat: got %+v, %v, want %+v", s, err, want)
	}
	for _, bad := range []string{"", "77 git S 1", "77 (git", "77 (git) S 1",
		"77 (git)" + strings.Replace(rest, "1234", "-1", 1), "77 (git)" + strings.Replace(rest, "4000", "-1", 1),
		"77 (git)" + strings.Replace(rest, " S", " SS", 1)} {
		if s, err := ParseStat([]byte(bad)); !errors.Is(err, ErrStat) || s != (Stat{}) {
			t.Errorf("stat %q: got %+v, %v, want %v", bad, s, err, ErrStat)
		}
	}
}

func TestOwnProcess(t *testing.T) {
	own := Of(os.Getpid())
	s, err := own.Stat()
	if err != nil || s.Parent != os.Getppid() || s.Ended() || s.ArgStart == 0 || s.EnvEnd <= s.ArgStart {
		t.Errorf("stat: %+v, %v", s, err)
	}
	mem, err := Self.Memory(os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	first := make([]byte, len(os.Args[0]))
	if _, err := mem.ReadAt(first, s.ArgStart); err != nil || string(first) != os.Args[0] {
		t.Errorf("memory at the arguments: got %q, %v, want %q", first, err, os.Args[0])
	}
	if args, err := own.Args(); err != nil || !slices.Equal(args, os.Args) {
		t.Errorf("arguments: got %q, %v, want %q", args, err, os.Args)
	}
	if name, err := own.Name(); err != nil || name != s.Name {
		t.Errorf("name: got %q, %v, want %q", name, err, s.Name)
	}
	if st, err := own.Status(); err != nil || st.PID != os.Getpid() || st.Name != s.Name {
		t.Errorf("status: %+v, %v", st, err)
	}
	wd, _ := os.Getwd()
	if dir, err := own.Dir(); err != nil || dir != wd {
		t.Errorf("working directory: got %q, %v, want %q", dir, err, wd)
	}
	if exe, err := Self.Executable(); err != nil || filepath.Base(exe) != filepath.Base(os.Args[0]) {
		t.Errorf("program: got %q, %v", exe, err)
	}
	if n, ok := Self.ResidentBytes(); !ok || n < 1<<20 {
		t.Errorf("resident: %d bytes, %t", n, ok)
	}
	if pids, err := PIDs(); err != nil || !slices.Contains(pids, os.Getpid()) {
		t.Errorf("processes: %v, %v", pids, err)
	}
	threads := own.Threads()
	main, ok := threads[fmt.Sprint(os.Getpid())]
	if !ok {
		t.Fatalf("threads: %v", threads)
	}
	if _, _, ok := main.Times(); !ok {
		t.Error("the main thread has no times")
	}
}

// TestGroupRan checks that the time of a child counts after its parent in the group has waited for it.
func TestGroupRan(t *testing.T) {
	cmd := exec.Command("sh", "-c", `i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done & wait; echo; read line`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if ran, err := GroupRan(cmd.Process.Pid); err != nil || ran < Tick {
		t.Errorf("time of the group after its child: got %v, %v, want at least %v", ran, err, Tick)
	}
	in.Close()
	_ = cmd.Wait()
	if ran, err := GroupRan(cmd.Process.Pid); err != nil || ran != 0 {
		t.Errorf("time of a group that has ended: got %v, %v, want 0", ran, err)
	}
}

func TestDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fds, err := Self.Descriptors(); err != nil || !slices.Contains(fds, int(f.Fd())) {
		t.Errorf("descriptors: got %v, %v, want %d among them", fds, err, f.Fd())
	}
	if to, err := os.Readlink(FDPath(f)); err != nil || to != path {
		t.Errorf("path of a descriptor: got %q, %v, want %q", to, err, path)
	}
	if text, err := Self.FDInfo(int(f.Fd())); err != nil || !strings.Contains(string(text), "mnt_id:") {
		t.Errorf("information on a descriptor: %q, %v", text, err)
	}
}

func TestIdentity(t *testing.T) {
	own := Identity(os.Getpid())
	if own == "" || own != Identity(os.Getpid()) || !strings.HasPrefix(own, fmt.Sprint(os.Getpid())) {
		t.Errorf("identity of this process: %q", own)
	}
	if got := Identity(1 << 30); got != "" {
		t.Errorf("identity of no process: got %q, want none", got)
	}
}

func TestProcessThatWasNotWaitedFor(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := Of(cmd.Process.Pid)
	in.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if s, err := p.Stat(); err == nil && s.Ended() {
			break
		}
		if time.Now().After(end) {
			t.Fatal("timed out waiting for the process to end")
		}
	}
	if args, err := p.Args(); err != nil || args != nil {
		t.Errorf("arguments of a process that ended: got %q, %v, want none", args, err)
	}
	_ = cmd.Wait()
	if _, err := p.Args(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("arguments of no process: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestParseSystemCall(t *testing.T) {
	const line = "257 0xffffff9c 0x7ffe7e512aa8 0x941 0x1b6 0x0 0x0 0x7ffe7e510f50 0x7f9fdd51a011\n"
	c, ok := ParseSystemCall([]byte(line))
	if !ok || c.Number != 257 || c.Args[2] != 0x941 || c.Stack != 0x7ffe7e510f50 {
		t.Errorf("system call is %+v, %v", c, ok)
	}
	for _, line := range []string{"", "running\n", "-1 0x7ffe7e510f50 0x7f9fdd51a011\n",
		strings.Replace(line, "257", "x", 1), strings.Replace(line, "0x941", "x", 1)} {
		if c, ok := ParseSystemCall([]byte(line)); ok {
			t.Errorf("invalid line %q was parsed as %+v", line, c)
		}
	}
	if c, running, ok := Thread.SystemCall(); ok && c.Number != syscall.SYS_READ {
		t.Errorf("the calling thread: %+v, running is %t, want the read of the file", c, running)
	}
}

func TestHost(t *testing.T) {
	if id, err := BootID(); err != nil || len(id) != 36 {
		t.Errorf("boot id: %q, %v", id, err)
	}
	if id, ok := MachineID(); ok && len(id) != 32 {
		t.Errorf("machine id: %q", id)
	}
	if ns, err := Self.Namespace("pid"); err != nil || !strings.HasPrefix(ns, "pid:[") {
		t.Errorf("namespace: %q, %v", ns, err)
	}
}

func FuzzParse(f *testing.F) {
	stat, _ := os.ReadFile("/proc/self/stat")
	status, _ := os.ReadFile("/proc/self/status")
	for _, seed := range [][]byte{stat, status, []byte("0::/a.service\n1:name=systemd:/\n"),
		[]byte("0 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := ParseStat(text); err == nil && (s.State == 0 || s.Started() < 0) || err != nil && s != (Stat{}) {
			t.Errorf("stat %q: %+v, %v", text, s, err)
		}
		ParseStatus(text)
		ParseSystemCall(text)
		for _, g := range ParseCgroups(string(text)) {
			if strings.Contains(g.Controllers, ":") {
				t.Errorf("group of %q: %+v", text, g)
			}
		}
	})
}
