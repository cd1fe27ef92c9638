package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// with returns the world with more variables for its commands.
func (x *filtered) with(env ...string) *filtered {
	x.places += 100 // the copies mount at other directories
	w := *x.world
	w.env = append(append([]string{}, w.env...), env...)
	return &filtered{world: &w, lfs: x.lfs, trace: x.trace, home: x.home}
}

// remount mounts a remote again at the directory of a mount.
func (x *filtered) remount(m mounted) {
	x.Helper()
	x.ok("mount", m.Remote, m.Dir, "--wait", "git")
}

// takeOver kills the worker, and returns when another worker serves.
func (x *filtered) takeOver() {
	x.Helper()
	old := x.serving()
	check2(x, syscall.Kill(old, syscall.SIGKILL))
	x.until("another worker serves", func() bool { pid := x.victim().Serving(); return pid != 0 && pid != old })
}

// shows checks the contents and the size of files, and that git reports no change.
func (x *filtered) shows(when string, m mounted, want map[string]string) {
	x.Helper()
	for name, text := range want {
		got, err := os.ReadFile(m.path(name))
		info, statErr := os.Stat(m.path(name))
		if err != nil || statErr != nil || string(got) != text || info.Size() != int64(len(text)) {
			x.Errorf("%s: %s: got %q (%v), stat %v, want %q and its length", when, name, got, err, statErr, text)
		}
	}
	x.clean(m)
}

// Two mounts whose users have other environments and settings show what checkouts with these settings contain: side by
// side, after a takeover, after all processes were killed, and when a session is mounted again with other settings.
func TestFilterSettingsOfTwoMounts(t *testing.T) {
	x := newFiltered(t)
	config := filepath.Join(x.root, "gitconfig")
	x.git(x.root, "config", "--file", config, "filter.tint.smudge", `sed "s/color/$COLOR/"`)
	x.git(x.root, "config", "--file", config, "filter.tint.clean", `sed "s/$COLOR/color/"`)
	r := x.repo("two.git", object.SHA1)
	large := "large contents\n"
	pointer, more := string(x.lfs.Add([]byte(large))), string(x.lfs.Add([]byte("more\n")))
	x.commit(r, map[string]gittest.File{
		".gitattributes": {Data: []byte("*.bin filter=lfs -text\n*.tint filter=tint\n*.up filter=upper\n")},
		"a.bin":          {Data: []byte(pointer)}, "b.bin": {Data: []byte(more)}, "a.tint": {Data: []byte("color\n")},
		"a.up": {Data: []byte("upper\n")},
	})
	// Another user's settings: git-lfs leaves out a.bin, and there is no driver "upper".
	other := filepath.Join(x.root, "otherconfig")
	text := must[[]byte](t)(os.ReadFile(config))
	check(t, os.WriteFile(other, text, 0o600))
	x.git(x.root, "config", "--file", other, "lfs.fetchexclude", "a.bin")
	x.git(x.root, "config", "--file", other, "--remove-section", "filter.upper")
	url := x.serve(gittest.ServerOptions{}).URL("two.git")

	plain, skip, exclude := x.with("COLOR=red"), x.with("COLOR=blueish", "GIT_LFS_SKIP_SMUDGE=1"),
		x.with("COLOR=green", "GIT_CONFIG_GLOBAL="+other)
	red := map[string]string{"a.bin": large, "b.bin": "more\n", "a.tint": "red\n", "a.up": "UPPER\n"}
	blue := map[string]string{"a.bin": pointer, "b.bin": more, "a.tint": "blueish\n", "a.up": "UPPER\n"}
	green := map[string]string{"a.bin": pointer, "b.bin": "more\n", "a.tint": "green\n", "a.up": "upper\n"}
	worlds := []*filtered{skip, plain, exclude}
	wants := []map[string]string{blue, red, green}
	var mounts []mounted
	for i, y := range worlds {
		mounts = append(mounts, y.mount(url, "--wait", "git", "--prefetch", "none"))
		y.shows("first read", mounts[i], wants[i])
		check(t, os.WriteFile(mounts[i].path("mine"), []byte("keeps the session\n"), 0o644))
		y.git(mounts[i].Dir, "add", "mine")
		y.git(mounts[i].Dir, "commit", "--quiet", "--message", "Mine")
		check(t, os.WriteFile(mounts[i].path("mine.tint"), []byte(wants[i]["a.tint"]), 0o644))
		tree := mounts[i].checkpoint().Tree
		if got := y.git(mounts[i].sessionGit(), "cat-file", "-p", tree+":mine.tint"); got != "color" {
			t.Errorf("checkpoint of %q: got %q, want the contents that git add stores", wants[i]["a.tint"], got)
		}
		check(t, os.Remove(mounts[i].path("mine.tint")))
	}
	for i, y := range worlds {
		y.shows("side by side", mounts[i], wants[i])
	}
	x.takeOver()
	x.dropCaches()
	for i, y := range worlds {
		y.shows("after a takeover", mounts[i], wants[i])
	}
	x.killDaemon()
	for i, y := range worlds {
		y.remount(mounts[i])
		y.shows("after a kill of all processes", mounts[i], wants[i])
	}
	for i := range mounts { // each session is mounted again with the settings of another user
		next := (i + 1) % len(worlds)
		x.ok("unmount", mounts[i].Dir)
		worlds[next].remount(mounts[i])
		worlds[next].shows("with other settings", mounts[i], wants[next])
	}
	if st := x.lfs.Stats(); st.Downloads > 4 {
		t.Errorf("downloads of git-lfs: got %d, want at most 2 with the usual settings and 1 for each session with others",
			st.Downloads)
	}
}

// A file that an optional driver did not convert, because it failed or went on without the network, keeps its contents
// as long as it is mounted, also in a successor. The next mount converts it.
func TestUnconvertedUntilUnmount(t *testing.T) {
	x := newFiltered(t)
	config := filepath.Join(x.root, "gitconfig")
	flag := filepath.Join(x.root, "works")
	x.git(x.root, "config", "--file", config, "filter.sometimes.smudge", "test -e "+flag+" && tr a-z A-Z && echo end")
	x.git(x.root, "config", "--file", config, "filter.sometimes.clean", "head -n 1 | tr A-Z a-z")
	x.git(x.root, "config", "--file", config, "lfs.skipdownloaderrors", "true")
	r := x.repo("unconverted.git", object.SHA1)
	pointer := string(x.lfs.Add([]byte("large contents\n")))
	x.commit(r, map[string]gittest.File{
		".gitattributes": {Data: []byte("*.bin filter=lfs -text\n*.some filter=sometimes\n")},
		"a.bin":          {Data: []byte(pointer)}, "a.some": {Data: []byte("text\n")}, "b.some": {Data: []byte("text b\n")},
	})
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("unconverted.git"), "--wait", "git", "--prefetch", "none")
	x.lfs.Down(true)
	raw := map[string]string{"a.bin": pointer, "a.some": "text\n"}
	x.shows("without the network", m, raw)
	x.lfs.Down(false)
	check(t, os.WriteFile(flag, nil, 0o600))
	x.shows("with the network again", m, raw)
	x.takeOver()
	x.dropCaches()
	x.shows("after a takeover", m, raw)
	check(t, os.WriteFile(m.path("mine"), nil, 0o644))
	x.git(m.Dir, "add", "mine")
	x.git(m.Dir, "commit", "--quiet", "--message", "Mine")
	x.ok("unmount", m.Dir)
	x.remount(m)
	converted := map[string]string{"a.bin": "large contents\n", "a.some": "TEXT\nend\n", "b.some": "TEXT B\nend\n"}
	x.shows("in the next mount", m, converted)
	x.killDaemon()
	x.remount(m)
	x.shows("after a kill of all processes", m, converted)
}

// The configuration of git-lfs in the repository decides which files stay pointers, also if another mount has their
// contents.
func TestLFSConfigOfTheTree(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("lfsconfig.git", object.SHA1)
	pointer := string(x.lfs.Add([]byte("large contents\n")))
	files := map[string]gittest.File{".gitattributes": {Data: []byte("*.bin filter=lfs -text\n")},
		"d/a.bin": {Data: []byte(pointer)}}
	before := x.commit(r, files)
	files[".lfsconfig"] = gittest.File{Data: []byte("[lfs]\n\tfetchexclude = d/\n")}
	x.commit(r, files)
	url := x.serve(gittest.ServerOptions{}).URL("lfsconfig.git")
	old := x.mount(url, "--wait", "git", "--prefetch", "none", "--ref", before.String())
	x.shows("without .lfsconfig", old, map[string]string{"d/a.bin": "large contents\n"})
	m := x.mount(url, "--wait", "git", "--prefetch", "none")
	x.shows("with .lfsconfig", m, map[string]string{"d/a.bin": pointer})
	if n := strings.Count(x.git(m.Dir, "lfs", "ls-files"), "- d/a.bin"); n != 1 {
		t.Errorf("git lfs ls-files does not report a pointer: %s", x.git(m.Dir, "lfs", "ls-files"))
	}
}
