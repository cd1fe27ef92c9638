package query

import (
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	type answers struct{ stagesModules, setsModes bool }
	for command, want := range map[string]answers{
		"":                               {true, false},
		"git status":                     {},
		"git -C d mv a b":                {stagesModules: true},
		"/usr/lib/git-core/git-rm a":     {stagesModules: true},
		"git -c core.fileMode=0 status":  {setsModes: true},
		"git config core.fileMode false": {},
	} {
		c := Command{argv: strings.Fields(command)}
		if command == "" {
			c = Find(0)
		}
		if got := (answers{c.StagesModules(), c.SetsModes()}); got != want {
			t.Errorf("command %q: got %+v, want %+v", command, got, want)
		}
	}
	if c := (Command{[]string{"git", "diff"}, []string{"GIT_CONFIG_KEY_0=core.filemode"}}); !c.SetsModes() {
		t.Error("the environment sets core.fileMode, but SetsModes returns false")
	}
}
