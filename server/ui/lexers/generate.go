//go:build ignore

// This program copies the lexers of the library chroma that the page needs into this directory. The page does not
// import the library's package with all lexers, because that package reads 300 files when a process starts (7 ms, 3
// MB), even in commands that show no page.
package main

import (
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
)

// names are the names of the lexers to copy.
var names = strings.Fields(`awk bash batchfile c c# c++ clojure cmake css dart diff docker elixir erlang fish fsharp graphql groovy
	haskell hcl html ini java javascript json julia kotlin lua makefile nginx_configuration_file nix objective-c ocaml perl powershell
	properties protocol_buffer python r ruby rust scala scss sql swift systemd terraform toml typescript vue xml yaml zig`)

func main() {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/alecthomas/chroma/v2").Output()
	if err != nil {
		log.Fatal(err)
	}
	root := strings.TrimSpace(string(dir))
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, "lexers/embedded", name+".xml"))
		if err != nil {
			log.Fatal(err)
		}
		write(strings.NewReplacer("#", "sharp", "++", "pp").Replace(name)+".xml", text)
	}
	license, err := os.ReadFile(filepath.Join(root, "COPYING"))
	if err != nil {
		log.Fatal(err)
	}
	write("COPYING", license)
	// The rules for Go are Go code, which must be converted. The only rule without a form in XML finds templates in raw
	// strings.
	rules, err := lexers.Go.(*chroma.RegexLexer).Rules()
	if err != nil {
		log.Fatal(err)
	}
	for i, r := range rules["root"] {
		if r.Pattern == "(`)([^`]*)(`)" {
			rules["root"][i] = chroma.Rule{Pattern: "`[^`]*`", Type: chroma.LiteralString}
		}
	}
	text, err := chroma.Marshal(chroma.MustNewLexer(lexers.Go.Config(), func() chroma.Rules { return rules }))
	if err != nil {
		log.Fatal(err)
	}
	write("go.xml", append(text, '\n'))
}

func write(name string, text []byte) {
	if err := os.WriteFile(name, text, 0o644); err != nil {
		log.Fatal(err)
	}
}
