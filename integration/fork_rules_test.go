package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Checkpoints of a fork leave out what those of its parent leave out, whatever rules these have: no carried file gets
// into a checkpoint, and so none is pushed.
func TestForkLeavesOutTheSame(t *testing.T) {
	w, r := newTravelled(t)
	w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte("build/\n*.o\n")}})
	s := w.serve(gittest.ServerOptions{})
	random := rand.New(rand.NewPCG(7, 8))
	some := func(all ...string) (chosen []string) {
		for _, x := range all {
			if random.IntN(2) == 0 {
				chosen = append(chosen, x)
			}
		}
		return chosen
	}
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		flags := some("--exclude=private/", "--exclude=*.bin,dir/sub/", "--include=.env,build/keep/", "--max-file-size=1K",
			"--no-deny-list")
		settings := some("git config core.excludesFile .my-excludes", "git config core.ignoreCase true",
			`echo 'own*' >>"$(git rev-parse --git-path info/exclude)"`)
		if round == 0 {
			flags, settings = []string{"--exclude=private/", "--max-file-size=1K"}, settings[:0]
		} else if round == 1 {
			flags, settings = nil, []string{"git config core.excludesFile .my-excludes", "git config core.ignoreCase true"}
		}
		name := fmt.Sprint("work", round)
		m := w.bare(s.URL("r.git"), append([]string{"--session", name, "--checkpoint", "off", "--wait", "git"}, flags...)...)
		w.sh(m.Dir, strings.Join(settings, "\n")+`
mkdir -p private dir/sub build/keep BUILD2 Build
printf 'user*\n.my-excludes\n' >.my-excludes
for at in private dir/sub dir build build/keep Build .; do
	for f in new a.o .env id_rsa x.bin user-file own-file .my-excludes2; do echo "$at $f" >$at/$f; done
	head -c 3000 /dev/urandom >$at/large
done
echo more >>d0001/f0001.txt && git add dir/sub/a.o -f`)
		want := m.everythingIn()
		f := m.fork(fmt.Sprint("fork", round))
		what := fmt.Sprintf("round %d, flags %q, settings %q", round, flags, settings)
		f.wantCarried(what, want)
		w.sh(m.Dir, "echo last >>dir/new")
		w.sh(f.Dir, "echo last >>dir/new")
		wanted := m.checkpoint()
		if p := f.checkpoint(); p.Tree != wanted.Tree || !slices.Equal(p.LeftOut, wanted.LeftOut) {
			t.Errorf("%s: checkpoint of the fork: got %+v, want %+v", what, p, wanted)
		}
		w.unmount(f)
		w.ok("mount", m.Remote, f.Dir, "--session", f.Session)
		w.sh(m.Dir, "echo last >>new")
		w.sh(f.Dir, "echo last >>new")
		if p, wanted := f.checkpoint(), m.checkpoint(); p.Tree != wanted.Tree {
			t.Errorf("%s: checkpoint of the fork, mounted again: got %+v, want %+v", what, p, wanted)
		}
		w.ok("unmount", "--discard", "--yes", f.Dir, m.Dir)
	}
}
