package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/fdstore"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// TestMain runs the tests, or one of the processes that they start. The executable of the tests is started as `NAME
// supervisor DIR`, as `NAME worker DIR`, and as `NAME keep SOCKET` (a descriptor store). The files in DIR control these
// processes and record what they do:
//
//	crash, refuse   number of workers that end before they serve, after (crash) or before (refuse) they wait for the order to serve
//	events          one line of JSON for each event
//	sock            socket on which the present worker answers
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch dir := os.Args[2]; os.Args[1] {
		case "supervisor":
			os.Exit(fakeDaemon(dir))
		case "worker":
			os.Exit(fakeWorker(dir))
		case "keep":
			s, err := fdstore.Listen(dir, zap.NewNop())
			if err != nil {
				panic(err)
			}
			panic(s.Serve(context.Background()))
		}
	}
	os.Exit(m.Run())
}

// happening is one event, which is one line of the file "events".
type happening struct {
	What    string
	PID     int
	Exe     string
	Start   keeper.Start
	Names   []string // names of the descriptors
	Mounts  int      // counter in the memory file that represents a mount; each worker adds 1
	Reason  string
	Version string
}

func tell(dir string, h happening) {
	h.PID = os.Getpid()
	h.Exe, _ = os.Executable()
	line, _ := json.Marshal(h)
	f, err := os.OpenFile(filepath.Join(dir, "events"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		os.Exit(1) // the test has ended
	}
	if err != nil {
		panic(err)
	}
	defer f.Close()
	f.Write(append(line, '\n'))
}

// countdown subtracts 1 from the number in a file if it is positive, and reports whether it was.
func countdown(dir, name string) bool {
	path := filepath.Join(dir, name)
	text, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(string(text))
	if n > 0 {
		os.WriteFile(path, []byte(strconv.Itoa(n-1)), 0o600)
	}
	return n > 0
}

func fakeDaemon(dir string) int {
	log := zap.NewNop()
	if os.Getenv("FAKE_LOG") != "" {
		log, _ = zap.NewDevelopment()
	}
	if countdown(dir, "term at exec") {
		syscall.Kill(os.Getpid(), syscall.SIGTERM) // before main handles signals
	}
	pauses = backoff.Backoff{First: time.Millisecond, Longest: 20 * time.Millisecond}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	watchdog, _ := time.ParseDuration(os.Getenv("FAKE_WATCHDOG"))
	tell(dir, happening{What: "supervisor"})
	return Run(ctx, Config{
		Executable: exe, WorkerArgs: []string{"worker", dir}, Args: []string{"supervisor", dir}, Watchdog: watchdog,
		Spare: os.Getenv("FAKE_SPARE") != "",
		GiveUp: func(descriptors []keeper.Descriptor, reason string) error {
			h := happening{What: "gave up", Reason: reason}
			for _, k := range descriptors {
				h.Names = append(h.Names, k.Name)
			}
			tell(dir, h)
			return nil
		},
		StoreSocket: os.Getenv("FAKE_STORE"), StoreName: dir, Running: func() bool { return false },
		Leave: func() bool { return os.Getenv("FAKE_LEAVE") != "" },
		Log:   log,
	})
}

const fakeMount = "0a" + mountSuffix

// fakeWorker runs a worker that carries out the commands that it receives on a socket. A memory file represents a
// mount.
func fakeWorker(dir string) int {
	signal.Ignore(syscall.SIGTERM)
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	version := filepath.Base(exe)
	if os.Getenv("FAKE_STORE") != "" {
		KeepLife()
	}
	conn, err := keeper.Open(WorkerFD)
	if err != nil {
		panic(err)
	}
	if countdown(dir, "refuse") || version == "refusing" {
		tell(dir, happening{What: "refused"})
		return 4
	}
	tell(dir, happening{What: "waiting"})
	start, descriptors, err := conn.AwaitStart(version)
	if err != nil {
		return 0
	}
	h := happening{What: "crashed", Start: start, Version: version}
	files := map[string]*os.File{}
	for _, k := range descriptors {
		h.Names = append(h.Names, k.Name)
		files[k.Name] = k.File
	}
	if countdown(dir, "crash") || version == "crashing" {
		tell(dir, h)
		return 3
	}
	memory := files[fakeMount]
	if memory == nil {
		fd, err := unix.MemfdCreate("mount", unix.MFD_CLOEXEC)
		if err != nil {
			panic(err)
		}
		memory = os.NewFile(uintptr(fd), "mount")
		conn.Keep(fakeMount, memory)
	}
	memory.WriteAt([]byte("x"), func() int64 { info, _ := memory.Stat(); return info.Size() }())
	info, _ := memory.Stat()
	h.What, h.Mounts = "serving", int(info.Size())
	l := fakeListener(dir, conn, files["control"])
	w := &fake{dir: dir, conn: conn, start: start}
	go w.listen()
	go func() {
		for !w.silent.Load() {
			conn.SendKey(keeper.Watchdog, "1")
			time.Sleep(100 * time.Millisecond)
		}
	}()
	conn.SendKey(keeper.Ready, "1") // before the event: a test may kill the worker as soon as it sees the event
	tell(dir, h)
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		w.answer(c)
	}
}

func fakeListener(dir string, conn *keeper.Conn, inherited *os.File) net.Listener {
	if inherited != nil {
		l, err := net.FileListener(inherited)
		if err != nil {
			panic(err)
		}
		return l
	}
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		panic(err)
	}
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		panic(err)
	}
	conn.Keep("control", f)
	return l
}

type fake struct {
	dir    string
	conn   *keeper.Conn
	start  keeper.Start
	silent atomic.Bool
}

// listen handles the messages of the supervisor, as package serving does in artifactfs.
func (w *fake) listen() {
	for {
		m, _, err := w.conn.Receive()
		switch {
		case err != nil && w.start.Managed:
			os.Exit(1)
		case err != nil:
			exe, _ := os.Executable()
			panic(Resurrect(w.conn, exe, []string{"supervisor", w.dir}, w.start))
		case m[keeper.Stop] != "" && countdown(w.dir, "crash at stop"):
			os.Exit(5)
		case m[keeper.Stop] != "":
			w.stop()
		case m[keeper.Reason] != "":
			tell(w.dir, happening{What: "reason", Reason: m[keeper.Reason]})
		case m[keeper.UpgradeFailed] != "":
			tell(w.dir, happening{What: "upgrade failed", Reason: m[keeper.UpgradeFailed]})
		}
	}
}

func (w *fake) stop() {
	tell(w.dir, happening{What: "stopped"})
	w.conn.Drop(fakeMount)
	w.conn.Drop("control")
	w.conn.SendKey(keeper.Stopping, "1")
	os.Exit(0)
}

// answer carries out the command in the line that it reads from c.
func (w *fake) answer(c net.Conn) {
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch word {
	case "pid":
		fmt.Fprintln(c, os.Getpid())
	case "exit":
		code, _ := strconv.Atoi(rest)
		os.Exit(code)
	case "silence":
		w.silent.Store(true)
	case "unmount":
		w.conn.Drop(fakeMount)
	case "end":
		w.stop()
	case "upgrade":
		f, err := os.Open(rest)
		if err != nil {
			panic(err)
		}
		w.conn.Send(keeper.Message{keeper.Upgrade: rest}, int(f.Fd()))
	}
}
