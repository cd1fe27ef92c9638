package prioritize

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestClassify(t *testing.T) {
	for want, paths := range map[Class][]string{
		Manifest: {
			"go.mod", "GO.MOD", "a/b/c/package.json", "yarn.lock", "Makefile", "src/makefile.win", "kernel/sched/Kconfig",
			"BUILD.bazel", "pkg/api/BUILD",
			"Dockerfile", "deploy/Dockerfile.arm64", "app.dockerfile", "tsconfig.json", "tsconfig.build.json",
			"requirements.txt", "requirements-dev.txt",
			"CLAUDE.md", "AGENTS.md", "pkg/AGENTS.md", ".cursorrules", ".github/workflows/ci.yml",
			".github/copilot-instructions.md", ".circleci/config.yml",
			".claude/commands/review.md", ".vscode/settings.json", ".gitignore", "deep/down/.gitignore", ".gitattributes",
			"vite.config.ts", "x/jest.config.cjs",
			"src/App/App.csproj", "App.sln", "my.gemspec", "gradle/libs.versions.toml",
			"gradle/wrapper/gradle-wrapper.properties", "gradlew", "Gemfile.lock",
			"tests/package.json", "docs/package.json", "examples/x/go.mod", "vendor/modules.txt", "bun.lockb",
			".pre-commit-config.yaml", "CMakeLists.txt",
			".husky/pre-commit", "lib/dune", "flake.nix", "build.rs",
		},
		Readme: {"README", "README.md", "readme.txt", "ReadMe.rst", "pkg/x/README.md", "README.zh-CN.md", "docs/README.md",
			".github/README.md"},
		Root: {
			"main.go", "LICENSE", "CHANGELOG.md", "index.html", "noextension", "data.json", "CODEOWNERS", ".hidden",
			"\xff\xfe.c", "with space.py",
		},
		Source: {
			"src/main.rs", "pkg/a/b.go", "a/b.TS", "lib/x.proto", "web/style.css", "db/schema.sql", "deploy/app.yaml",
			"scripts/build", "bin/run",
			"src/history.js", "src/todo.ts", "app/contest.py", "lib/latest.go", "include/linux/list.h", "arch/x86/entry.S",
			"src/testing.go",
			"lib/\xe9t\xe9.c", "src/main/java/A.java", "readme/parse.go", "src/readme.go", "x/License.java",
		},
		Test: {
			"a_test.go", "pkg/a_test.go", "src/a.test.ts", "src/a.spec.js", "tests/x.rs", "test/unit/a.py", "a/test_x.py",
			"src/test/java/A.java",
			"x/ATest.java", "spec/models/user_spec.rb", "__tests__/a.js", "pkg/testdata/go.mod", "fixtures/package.json",
			"fixtures/Makefile",
			"t/t0001-init.sh", "conftest.py", "e2e/login.ts", "x/__snapshots__/a.snap", "tools/testing/selftests/x.c",
			"x/a.snap", "testdata/README.md",
			"src/button.stories.tsx",
		},
		Doc: {
			"docs/guide.md", "doc/api.txt", "a/b/notes.md", "man/git.1", "src/git.1", "examples/hello/main.go", "docs/conf.py",
			"pkg/LICENSE",
			"a/CHANGELOG.md", ".github/ISSUE_TEMPLATE/bug.md", "Documentation/process/howto.rst", "a/LICENSE.APACHE",
		},
		Other: {
			"node_modules/x/package.json", "node_modules/x/README.md", "vendor/a/b.go", "third_party/zlib/inflate.c",
			"data/table.csv", "a/b/unknown",
			"a/x.weird", "web/app.min.js", "web/app.js.map", "dist/index.js", ".yarn/releases/yarn.cjs",
			"src/api.generated.ts", "logs/a.log",
			"src/bin.d/thing", "table.csv", "a/vendor/x/README",
		},
		Media: {
			"logo.png", "a/b/photo.JPG", "fonts/x.woff2", "x.tar.gz", "lib/native.so", "docs/img/a.svg", "testdata/x.zip",
			"model.onnx", "a/b.pdf",
			"vendor/x/logo.gif", "node_modules/x/y.wasm", "gradle/wrapper/gradle-wrapper.jar", ".github/logo.png",
			"sound.mp3", "a.class",
		},
	} {
		for _, p := range paths {
			if got := Classify(p, strings.Count(p, "/")); got != want {
				t.Errorf("class of %q: got %s, want %s", p, got, want)
			}
		}
	}
}

func TestClassNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range 256 {
		name := Class(c).String()
		if seen[name] || name == "" || (c < classes) == strings.HasPrefix(name, "class ") {
			t.Errorf("name of class %d: got %q", c, name)
		}
		seen[name] = true
	}
}

// FuzzClassify: all paths have a class, always the same, and never one that is reserved for the actions of users.
func FuzzClassify(f *testing.F) {
	for _, p := range []string{"", "/", "a/", "//x", "a.b.c", ".", "..", "\xff/\xfe.go", "go.mod/go.mod",
		strings.Repeat("d/", 300) + "x.c", "İ/İ.GO"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		depth := strings.Count(path, "/")
		c := Classify(path, depth)
		if c < Manifest || c > Last || c != Classify(path, depth) {
			t.Fatalf("class of %q: got %s, which is reserved", path, c)
		}
		if r := rank(c, path); depth < 127 && int(r)/2 != depth {
			t.Fatalf("rank of %q at depth %d: got %d", path, depth, r)
		}
	})
}

func numberedID(n uint64) object.ID {
	var sum [20]byte
	binary.BigEndian.PutUint64(sum[12:], n+1)
	id, _ := object.FromBytes(sum[:])
	return id
}

// TestMonorepoOrder shows in what order a monorepo would be fetched. The golden file is meant to be read.
func TestMonorepoOrder(t *testing.T) {
	list, err := os.ReadFile(filepath.Join("testdata", "monorepo.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for lines := bufio.NewScanner(bytes.NewReader(list)); lines.Scan(); {
		paths = append(paths, lines.Text())
	}
	// The order in which wants come must not matter but through Seq.
	rng := rand.New(rand.NewPCG(7, 7))
	q := NewQueue()
	for _, i := range rng.Perm(len(paths)) {
		p := paths[i]
		q.Push(Want{ID: numberedID(uint64(i)), Class: Classify(p, strings.Count(p, "/")), Path: p, Seq: uint64(i)})
	}
	var got strings.Builder
	for q.Len() > 0 {
		for _, w := range q.Take(Last, 10) {
			fmt.Fprintf(&got, "%-9s %s\n", w.Class, w.Path)
		}
	}
	golden := filepath.Join("testdata", "monorepo.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the order is not that of %s (run with -update and read the difference):\n%s", golden, got.String())
	}
}

func BenchmarkClassify(b *testing.B) {
	paths := []string{"src/kernel/sched/core.c", "packages/ui/src/components/button.test.tsx", "go.mod",
		"docs/img/overview.svg", "a/b/c/d/unknown"}
	for i := 0; b.Loop(); i++ {
		p := paths[i%len(paths)]
		Classify(p, strings.Count(p, "/"))
	}
}
