package sessions

import "testing"

func TestSplitTarget(t *testing.T) {
	for word, want := range map[string][2]string{
		"":                                      {"", ""},
		":main":                                 {"", "main"},
		"origin:main":                           {"origin", "main"},
		"origin":                                {"origin", ""},
		"https://git.example:8443/app.git":      {"https://git.example:8443/app.git", ""},
		"https://git.example:8443/app.git:a/b":  {"https://git.example:8443/app.git", "a/b"},
		"https://u:p@git.example/app.git:main":  {"https://u:p@git.example/app.git", "main"},
		"https://git.example:8443":              {"https://git.example:8443", ""},
		"git@git.example:team/app.git":          {"git@git.example:team/app.git", ""},
		"git@git.example:team/app.git:main":     {"git@git.example:team/app.git", "main"},
		"ssh://git@git.example:22/app.git:main": {"ssh://git@git.example:22/app.git", "main"},
		"/srv/app.git:main":                     {"/srv/app.git", "main"},
		"../app.git":                            {"../app.git", ""},
		"team/app:main":                         {"team/app", "main"},
	} {
		if to, branch := splitTarget(word); to != want[0] || branch != want[1] {
			t.Errorf("target %q: got %q and %q, want %q and %q", word, to, branch, want[0], want[1])
		}
	}
}
