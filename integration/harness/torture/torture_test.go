package torture

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	os.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	Main()
	os.Exit(m.Run())
}

// plain creates a checkout, and a clone of it that is used instead of a mount.
func plain(t *testing.T) Options {
	t.Helper()
	root := t.TempDir()
	o := Options{Mount: filepath.Join(root, "mount"), Plain: filepath.Join(root, "plain"),
		Scratch: filepath.Join(root, "scratch"), Seed: 1}
	for i := range 300 {
		path := filepath.Join(o.Plain, fmt.Sprintf("d%d", i%3), fmt.Sprintf("file%d", i))
		if i%50 == 0 {
			path = filepath.Join(o.Plain, WorkDir, fmt.Sprint(i))
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat(fmt.Sprintln("line", i), i*5)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script :=
		`git init -q -b main && echo /load >> .git/info/exclude && git config user.name t && git config user.email t@localhost &&
		git add . && git commit -q -m one && echo more >> work/0 && git commit -q -a -m two && git clone -q . ../mount && echo /load >> ../mount/.git/info/exclude`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = o.Plain
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make the working trees: %v: %s", err, out)
	}
	return o
}

// TestLoadItself checks that the load reports no error on a file system whose server is not killed.
func TestLoadItself(t *testing.T) {
	o := plain(t)
	o.Jobs = append(Jobs(), "reader", "names")
	l, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Kill()
	if err := l.Ready(time.Minute); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline) && len(l.Errors()) == 0; {
		time.Sleep(50 * time.Millisecond)
	}
	r := l.Stop(time.Minute)
	for _, e := range r.Errors {
		t.Error(e)
	}
	for _, kind := range Jobs() {
		if r.Done[kind] == 0 {
			t.Errorf("job %s has done no operation", kind)
		}
	}
	t.Logf("%v", r.Done)
}

// TestLoadFindsFaults checks that each job detects changes that another process makes to its files.
func TestLoadFindsFaults(t *testing.T) {
	for kind, sabotage := range map[string]string{
		"names":   `rm -rf "$DIR"/n*`,
		"signals": `for f in "$DIR"/*; do mv "$f" "$DIR/other"; done`,
		"blocks":  `dd if=/dev/zero of="$DIR/file1" bs=5000 seek=3 count=3 conv=notrunc`,
		"tail":    `echo more >> "$DIR/log"`,
		"git":     `echo more >> "$MOUNT/d1/file100"`,
		"locks":   `printf x >> "$DIR/counter"; printf "\377" | dd of="$DIR/counter" bs=1 seek=6 conv=notrunc`,
		"reader":  `for f in "$MOUNT"/d*/*; do tr 1 2 < "$f" > "$f.2"; cat "$f.2" > "$f"; done`,
		"listing": `rm "$MOUNT"/d*/*8`,
		"watch":   `touch "$DIR/more"`,
		"build":   `rm -r "$DIR/a"; rm "$DIR/prog"`,
		"deleted": `: > "$DIR/more"`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o := plain(t)
			o.Jobs = []string{kind}
			l, err := Start(o)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Kill()
			if err := l.Ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); len(l.Errors()) == 0 &&
				time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				cmd := exec.Command("sh", "-c", sabotage)
				cmd.Env = append(os.Environ(), "MOUNT="+o.Mount, "DIR="+filepath.Join(o.Mount, loadDir, l.jobs[0].name))
				cmd.Run() // an error is ignored, because the file may not exist at this moment
				if kind == "deleted" || kind == "locks" {
					break // the job detects the change when it ends
				}
			}
			r := l.Stop(time.Minute)
			if len(r.Errors) == 0 {
				t.Errorf("the jobs detected no error in %v", r.Done)
			} else {
				t.Log(r.Errors[0])
			}
		})
	}
}

func TestStalls(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	gaps := []Gap{{"read", ms(0), ms(5)}, {"read", ms(90), ms(150)}, {"create", ms(95), ms(130)},
		{"read", ms(205), ms(300)}}
	got := Stalls(gaps, []time.Duration{ms(100), ms(200), ms(400)})
	if want := fmt.Sprint([]time.Duration{ms(50), ms(95), 0}); fmt.Sprint(got) != want {
		t.Errorf("kinds of jobs: got %v, want %v", got, want)
	}
}
