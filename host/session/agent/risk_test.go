package agent

import (
	"strings"
	"testing"
)

func TestCommandsThatThrowWorkAwayAreKnown(t *testing.T) {
	for command, want := range map[string]bool{
		"git reset --hard":                  true,
		"git -C /x -c a=b reset --hard @~1": true,
		"git reset HEAD f":                  false,
		"git reset --soft @~1":              false,
		"git checkout .":                    true,
		"git checkout -- f":                 true,
		"git checkout -f main":              true,
		"git checkout -b new":               false,
		"git checkout -fb new":              true,
		"git restore f":                     true,
		"git restore --staged f":            false,
		"git restore -SW f":                 true,
		"git clean -fdx":                    true,
		"git clean -n":                      false,
		"git switch main":                   false,
		"git switch --discard-changes main": true,
		"git stash":                         true,
		"git stash drop":                    true,
		"git stash list":                    false,
		"git rebase -i main":                true,
		"git rebase --abort":                true,
		"git merge topic":                   false,
		"git merge --abort":                 true,
		"git rm f":                          true,
		"git rm --cached f":                 false,
		"git read-tree -u -m HEAD":          true,
		"git worktree remove --force w":     true,
		"git worktree add w":                false,
		"git status":                        false,
		"git commit -am x":                  false,
		"git push -f":                       false,
		"git nuke":                          true, // unknown commands may be aliases for any command
		"/usr/lib/git-core/git-checkout .":  true,
		"git":                               false,
		"git --version":                     false,
		"less -f":                           false,
	} {
		if got := risky(strings.Fields(command)); got != want {
			t.Errorf("risky(%q) = %v", command, got)
		}
	}
}
