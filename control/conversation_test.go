package control

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The conversations are kept as bytes: a change of the types must not change them. A line that ends within an object is
// the beginning of the answer.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/conversations/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d conversations, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(t.TempDir(), "d.sock")
			serve(t, socket, newFake())
			var answer string
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSuffix(line, "\n")
				switch {
				case strings.HasPrefix(line, "-> "):
					answer = answerTo(t, socket, line[3:])
				case strings.HasPrefix(line, "<- "):
					want := line[3:]
					if answer != want && !(strings.HasSuffix(want, ",") && strings.HasPrefix(answer, want)) {
						t.Errorf("answer: got %s\nwant %s", answer, want)
					}
				}
			}
		})
	}
}

// answerTo returns the line that a server answers to a line without a step of progress.
func answerTo(t *testing.T, socket, line string) string {
	t.Helper()
	conn := rawRequest(t, socket, []byte(line+"\n"))
	defer conn.Close()
	answer, err := readLine(bufio.NewReader(conn), maxMessage)
	if err != nil {
		t.Fatalf("read answer to %s: %v", line, err)
	}
	return string(answer)
}

func TestClientIsToldWhatAnOlderDaemonIgnored(t *testing.T) {
	c := answering(t, `{"version":6,"result":{"dir":"/m"},"ignored":["colour"]}`)
	var said []string
	if _, err := c.Mount(t.Context(), mountRequest("/m"),
		func(p Progress) { said = append(said, p.Message) }); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "ignored colour") {
		t.Errorf("progress: got %q, want one message that names the ignored field", said)
	}
}

func TestZeroValuesAreTheDefaultsOfTheCommandLine(t *testing.T) {
	f := newFake()
	socket := filepath.Join(t.TempDir(), "d.sock")
	serve(t, socket, f)
	c := &Client{socket: socket}
	if _, err := c.Mount(t.Context(), MountRequest{Remote: "/srv/r.git", Dir: "/m"}, nil); err != nil {
		t.Fatalf("mount with the zero value of all settings: %v", err)
	}
	got := f.mounted["/m"]
	if got.History != HistoryBackground || got.Prefetch != PrefetchAuto || got.Wait != WaitTree ||
		int(got.UID) != os.Getuid() || int(got.GID) != os.Getgid() {
		t.Errorf("mount with the zero value of all settings: the daemon got %+v", got)
	}
	for _, l := range []Launch{{}, {State: "state"}} {
		l, err := l.complete()
		if err != nil || !filepath.IsAbs(l.State) || l.Socket != DaemonSocket(l.State) ||
			l.LogFile != filepath.Join(l.State, "log", "daemon.log") || l.IdleExit <= 0 {
			t.Errorf("launch: got %+v, %v, want the paths of a state directory", l, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Ensure(t.Context(), Launch{State: t.TempDir()}); AsError(err).ErrorCode() != CodeNotFound ||
		AsError(err).Hint == "" {
		t.Errorf("ensure without an artifactfs in $PATH: got %#v, want code %q and a hint", err, CodeNotFound)
	}
}
