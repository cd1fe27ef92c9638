package mountinfo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
48 27 0:55 / /srv/a\040b rw,nosuid shared:9 master:3 - fuse.artifactfs /remote rw,user_id=0,default_permissions
nonsense
49 48 0:56 /sub /srv/a\040b/in ro - tmpfs  ro
50 27 0:57 / /srv/a\040b rw - autofs x rw
`

func TestParse(t *testing.T) {
	table := Parse([]byte(sample))
	if len(table) != 5 {
		t.Fatalf("%d mounts: %+v", len(table), table)
	}
	m := table[2]
	if m.ID != 48 || m.Parent != 27 || m.Point != "/srv/a b" || m.Shared != 9 || m.Master != 3 ||
		m.Type != "fuse.artifactfs" || m.Source != "/remote" ||
		!slices.Contains(m.Options, "nosuid") || !slices.Contains(m.Super, "default_permissions") || m.Device != 55 {
		t.Errorf("third entry of the table is %+v", m)
	}
	if m, ok := table.At("/srv/a b"); !ok || m.ID != 50 {
		t.Errorf("at: %+v", m)
	}
	for path, want := range map[string]int{"/srv/a b/in/x": 49, "/srv/a b/inside": 50, "/srv/a bc": 27, "/proc/1": 22} {
		if m, ok := table.Above(path); !ok || m.ID != want {
			t.Errorf("above %s: %+v", path, m)
		}
	}
}

// environment variable of the child process; contains the directory whose copies it must list
const lookVar = "MOUNTINFO_LOOK"

// TestCopies checks that the mounts that Copies returns before an unmount are the mounts that remain after it.
func TestCopies(t *testing.T) {
	if dir := os.Getenv(lookVar); dir != "" {
		copies, err := Copies(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range copies {
			where := "here"
			if c.PID != 0 {
				where = "beside"
			}
			fmt.Printf("copy: %s %s\n", where, filepath.Base(c.Point))
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ script, want string }{
		"nothing":           {``, ""},
		"bind mount":        {`mount --bind m n`, "copy: here n\n"},
		"private namespace": {`$B private :`, "copy: beside m\n"},
		"slave namespace":   {`mount --make-shared .; $B slave :`, ""},
		"shared namespace":  {`mount --make-shared .; $B unchanged :`, ""},
		"slave of a slave":  {`mount --make-shared .; $B slave "mount --make-shared .; $B slave :"`, ""},
		"slave of a private one": {`mount --make-shared .; $B private "mount --make-shared .; $B slave :"`,
			"copy: beside m\ncopy: beside m\n"},
		"bind mount in a slave":     {`mount --make-shared .; $B slave "mount --bind m n"`, "copy: beside n\n"},
		"what is around bound, too": {`mount --make-shared .; mkdir ../o; mount --bind . ../o; umount m; mount -t tmpfs -o size=1m none m`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := filepath.Join(dir, "beside")
			if err := os.WriteFile(b, []byte(beside), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-euc", `
				trap 'test ! -e "$B.jobs" || kill $(cat "$B.jobs")' EXIT
				umount -l -a -t fuse.artifactfs || true # tests of other packages must be able to unmount theirs
				mkdir tree
				mount -t tmpfs -o size=1m none tree
				cd tree
				mkdir m n
				mount -t tmpfs -o size=1m none m
				`+c.script+`
				`+lookVar+`="$PWD/m" "$0" -test.run='^TestCopies$' | grep '^copy' || true`, program)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "B="+b)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			got, err := cmd.Output()
			if err != nil || string(got) != c.want {
				t.Errorf("%q, want %q (%v: %s)", got, c.want, err, &stderr)
			}
		})
	}
}

// beside is a shell script. Called with the arguments PROPAGATION SCRIPT, it creates a mount namespace, runs SCRIPT in
// it, and ends while the namespace continues to exist.
const beside = `#!/bin/sh -eu
mkfifo "$0.$$"
unshare --mount --propagation "$1" sh -euc "$2"'; echo >"$0"; exec sleep 60' "$0.$$" >/dev/null &
echo $! >>"$0.jobs"
read -r _ <"$0.$$"
`

func FuzzParse(f *testing.F) {
	f.Add(sample, "/srv/a b")
	f.Add("a b c d\\040 /e - fuse.artifactfs x", "/")
	f.Fuzz(func(t *testing.T, text, dir string) {
		table := Parse([]byte(text))
		if m, ok := table.At(dir); ok && m.Point != dir {
			t.Errorf("at %q: %+v", dir, m)
		}
		if m, ok := table.Above(dir); ok && !Within(m.Point, dir) {
			t.Errorf("above %q: %+v", dir, m)
		}
	})
}
