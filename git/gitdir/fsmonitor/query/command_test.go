package query

import (
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	type answers struct{ stagesModules, readsPaths, setsComparison bool }
	for command, want := range map[string]answers{
		"":                                     {true, false, false},
		"git status":                           {},
		"git -C d mv a b":                      {stagesModules: true},
		"/usr/lib/git-core/git-rm a":           {stagesModules: true},
		"git update-index --add --stdin":       {readsPaths: true},
		"git update-index a":                   {},
		"git checkout-index -z --stdin":        {readsPaths: true},
		"git hash-object --stdin":              {},
		"git -c core.fileMode=0 status":        {setsComparison: true},
		"git -c core.checkStat=minimal status": {setsComparison: true},
		"git config core.fileMode false":       {},
	} {
		c := Command{argv: strings.Fields(command)}
		if command == "" {
			c = Find(0)
		}
		if got := (answers{c.StagesModules(), c.ReadsPaths(), c.SetsComparison()}); got != want {
			t.Errorf("command %q: got %+v, want %+v", command, got, want)
		}
	}
	if c := (Command{[]string{"git", "diff"}, []string{"GIT_CONFIG_KEY_0=core.filemode"}}); !c.SetsComparison() {
		t.Error("the environment sets core.fileMode, but SetsComparison returns false")
	}
}
