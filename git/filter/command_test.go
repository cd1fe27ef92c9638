package filter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func TestOneShot(t *testing.T) {
	t.Setenv("GIT_INDEX_FILE", "/nowhere")
	t.Setenv("ARTIFACTFS_TOKEN", "secret")
	tr := newTree(t, nil)
	large := strings.Repeat("x", 1<<20)
	for _, c := range []struct{ command, path, content, want string }{
		{"tr a-z A-Z", "a", "abc\n", "ABC\n"},
		{"cat", "a", large, large},
		{"head -c 3", "a", large, "xxx"},
		{"true", "a", large, ""},
		{`printf '%%s|%%s' %f "$0"; cat >/dev/null`, "it's a $path/!x", "",
			`it's a $path/!x|printf '%s|%s' 'it'\''s a $path/!x' "$0"; cat >/dev/null`},
		{"echo 100%% %d 5%; pwd", "a", "", "100% %d 5%\n" + tr.dir + "\n"},
		{`echo "$GIT_DIR $GIT_INDEX_FILE$ARTIFACTFS_TOKEN$PWD"`, "a", "", tr.dir + "/git " + tr.dir + "\n"},
		{"if [ -t 0 ] || ( : </dev/tty ) 2>/dev/null; then echo terminal; fi", "a", "", ""},
	} {
		f, out := file(c.path, c.content)
		if err := tr.OneShot(c.command, f); err != nil || out.String() != c.want {
			t.Errorf("filter command %s: got %.200q, %v", c.command, out, err)
		}
	}
	for _, failing := range []string{"false", "echo half; exit 1", "no-such-program-here", "kill -9 $$"} {
		f, _ := file("a", large)
		if err := tr.OneShot(failing, f); !errors.Is(err, ErrUnfiltered) {
			t.Errorf("failing filter command %s: got %v, want ErrUnfiltered", failing, err)
		}
	}
}

func TestOneShotsAreBounded(t *testing.T) {
	tr := newTree(t, nil)
	var wg sync.WaitGroup
	for i := range 4 * maxOneShots {
		wg.Go(func() {
			f, out := file(fmt.Sprint(i), "x")
			err := tr.OneShot(`mkdir run.$$; ls -d run.* | wc -l >>counts; rmdir run.$$; cat`, f)
			if err != nil || out.String() != "x" {
				t.Errorf("filter command beside others: got %q, %v", out, err)
			}
		})
	}
	wg.Wait()
	counts, err := os.ReadFile(filepath.Join(tr.dir, "counts"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range strings.FieldsSeq(string(counts)) {
		var running int
		if fmt.Sscan(n, &running); running > maxOneShots {
			t.Errorf("concurrent commands: got %d", running)
		}
	}
}

func TestStandardErrorIsLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	tr := newTree(t, func(o *Options) { o.Log = zap.New(core) })
	f, _ := file("a", "")
	if err :=
		tr.OneShot(`printf 'one\rtwo\n\nthr' >&2; printf 'ee\n' >&2; head -c 5000 /dev/zero | tr '\0' x >&2; echo >&2`,
			f); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range logs.All() {
		line := e.ContextMap()["line"].(string)
		lines = append(lines, line[:min(len(line), 5)])
		if len(line) > maxLogLine {
			t.Errorf("the log has a line of %d bytes", len(line))
		}
	}
	if got := strings.Join(lines, ","); got != "one,two,three,xxxxx" {
		t.Errorf("log: got %s", got)
	}
}

func TestCloseKillsAll(t *testing.T) {
	tr := newTree(t, nil)
	f, _ := file("a", "")
	done := make(chan error, 1)
	go func() { done <- tr.OneShot(`sh -c 'echo $$ >pid; sleep 1000' | cat`, f) }()
	var pid []byte
	await.Until(t, "the command runs", func() bool {
		pid, _ = os.ReadFile(filepath.Join(tr.dir, "pid"))
		return bytes.HasSuffix(pid, []byte("\n"))
	})
	tr.Close()
	if err := <-done; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	await.Until(t, "the children of the command have ended", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}

// TestIconvLikeGit compares conversions between encodings that need tables with a checkout by git.
func TestIconvLikeGit(t *testing.T) {
	texts := []string{
		"abc\n", "h\u00e9\u00ff\n", "\u0410\u0411\u0401\u0451\u0491\n", "\u65e5\u672c\u8a9e\n", "\u65e5\u672c\u8a9e",
		"\u4e2d\u6587 \u7e41\u9ad4\r\n", "\ud55c\uae00\n", "\u20ac\u00a5\u203e\u2225\u301c\uff5e\uff0d\u2212\n", "~\\\n",
		"\ufeffx\n", "\u0081\u009f\n", "\U0001f600", "bad \xff", "a\xe4\xb8",
		"\u2460\u3231\n", "\uff71\uff72\n", "\u2014\u2015\u00a6\n", strings.Repeat("\u65e5\u672c\u00e9\n", 40_000),
		strings.Repeat("\u0430\n", 40_000),
	}
	encodings := []string{
		"SHIFT-JIS", "SJIS", "CP932", "EUC-JP", "ISO-2022-JP", "GBK", "GB18030", "BIG5", "EUC-KR", "KOI8-R", "windows-1250",
		"windows-1251", "WINDOWS-1252", "CP1253", "ISO-8859-2", "ISO-8859-15", "latin-1",
		"UCS-2", "UCS-2LE", "macintosh", "IBM437", "ASCII//TRANSLIT", "latin1//IGNORE", "no-such", "UTF-32LE-BOM",
		"/etc/passwd", "-c", "--help", "a,b",
	}
	repo := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v failed: %v: %s", args, err, out)
		}
	}
	git("init", "-q")
	for i := range encodings {
		for j, text := range texts {
			os.MkdirAll(filepath.Join(repo, fmt.Sprint(i)), 0o755)
			if err := os.WriteFile(filepath.Join(repo, fmt.Sprint(i), fmt.Sprint(j)), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	git("add", ".")
	git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
	var attributes strings.Builder
	for i, name := range encodings {
		fmt.Fprintf(&attributes, "/%d/* working-tree-encoding=%s\n", i, name)
	}
	if err := os.WriteFile(filepath.Join(repo, ".git", "info", "attributes"), []byte(attributes.String()),
		0o600); err != nil {
		t.Fatal(err)
	}
	for i := range encodings {
		if err := os.RemoveAll(filepath.Join(repo, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	git("checkout", "-q", "-f", "HEAD", "--", ".")
	tr := newTree(t, nil)
	for i, name := range encodings {
		names := []string{name}
		if name == "latin-1" {
			names = append(names, "ISO-8859-1")
		}
		encoded := 0
		for j, text := range texts {
			want, err := os.ReadFile(filepath.Join(repo, fmt.Sprint(i), fmt.Sprint(j)))
			if err != nil {
				t.Fatal(err)
			}
			got, ok, err := tr.Iconv(names, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				got = []byte(text)
			} else {
				encoded++
			}
			if !bytes.Equal(got, want) {
				t.Errorf("encoding %s: %.60q was converted to %.60q, want %.60q (%v)", name, text, got, want, ok)
			}
		}
		t.Logf("%s: %d of %d encoded", name, encoded, len(texts))
	}
}
