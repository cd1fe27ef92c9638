package prioritize

import (
	"strings"
	"sync"
)

// traits is a set of properties that follow from the name of a file or directory.
type traits uint16

const (
	manifest traits = 1 << iota
	// files that come last in their class: lock files, because they are large, and text that is seldom compiled
	later
	source
	test
	fixture // data of tests, even if the name looks like program text
	doc
	media
	vendored // copies of other projects' files, and generated files
	settings // a directory whose files are all settings
	scripts  // a directory whose files without extension are programs
)

// words returns a function that returns a table of names with their traits. Each key of the map in the parameter of is
// a set of traits; its value lists the names that have these traits, separated by white space. The table is made at the
// first call of the function, because short commands need none.
func words(of map[traits]string) func() map[string]traits {
	return sync.OnceValue(func() map[string]traits {
		table := map[string]traits{}
		for t, list := range of {
			for name := range strings.FieldsSeq(list) {
				table[name] |= t
			}
		}
		return table
	})
}

// exactNames are file names that have a meaning only in this combination of upper and lower case.
var exactNames = words(map[traits]string{manifest: `BUILD BUCK WORKSPACE`})

// fileNames are complete file names, in lower case.
var fileNames = words(map[traits]string{
	manifest: `
		agents.md claude.md gemini.md skill.md copilot-instructions.md .cursorrules .windsurfrules .clinerules .mcp.json mcp.json .aider.conf.yml
		go.mod go.work magefile.go .golangci.yml .golangci.yaml .goreleaser.yml .goreleaser.yaml
		package.json pnpm-workspace.yaml lerna.json nx.json turbo.json rush.json deno.json deno.jsonc jsconfig.json angular.json biome.json
		.npmrc .yarnrc .yarnrc.yml .nvmrc .node-version .babelrc .swcrc .browserslistrc
		cargo.toml build.rs rust-toolchain rust-toolchain.toml rustfmt.toml .rustfmt.toml clippy.toml
		pyproject.toml setup.py setup.cfg pipfile tox.ini noxfile.py pytest.ini mypy.ini ruff.toml .ruff.toml .flake8 .pylintrc manifest.in
		environment.yml .python-version conanfile.txt conanfile.py vcpkg.json
		gemfile rakefile .ruby-version .rubocop.yml composer.json mix.exs rebar.config project.clj deps.edn build.sbt
		pom.xml build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradle.properties gradle-wrapper.properties libs.versions.toml
		gradlew mvnw
		directory.build.props directory.build.targets directory.packages.props global.json nuget.config packages.config
		stack.yaml cabal.project package.yaml dune dune-project pubspec.yaml package.swift podfile cartfile
		makefile gnumakefile kbuild kconfig cmakelists.txt cmakepresets.json meson.build meson_options.txt meson.options configure.ac makefile.am
		build.bazel workspace.bazel module.bazel .bazelrc .bazelversion .bazelignore .buckconfig pants.toml build.gn .gn
		justfile taskfile.yml taskfile.yaml earthfile tiltfile procfile vagrantfile dockerfile containerfile .dockerignore
		compose.yml compose.yaml chart.yaml values.yaml skaffold.yaml kustomization.yaml serverless.yml netlify.toml vercel.json wrangler.toml
		wrangler.json wrangler.jsonc firebase.json flake.nix default.nix shell.nix .envrc .env.example .tool-versions mise.toml .mise.toml
		jenkinsfile .travis.yml .gitlab-ci.yml .drone.yml .woodpecker.yml .cirrus.yml appveyor.yml .appveyor.yml azure-pipelines.yml
		bitbucket-pipelines.yml cloudbuild.yaml codecov.yml .codecov.yml renovate.json .pre-commit-config.yaml
		.gitignore .gitattributes .gitmodules .ignore .editorconfig .clang-format .clang-tidy .clangd .prettierrc .prettierignore .eslintrc
		.eslintignore .stylelintrc .markdownlint.json vendor/modules.txt`,
	manifest | later: `
		go.sum go.work.sum package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb deno.lock cargo.lock
		pipfile.lock poetry.lock uv.lock pdm.lock gemfile.lock composer.lock mix.lock pubspec.lock package.resolved podfile.lock
		packages.lock.json gradle.lockfile flake.lock chart.lock .terraform.lock.hcl module.bazel.lock conan.lock`,
	test: `conftest.py`,
	doc: `
		license licence copying notice authors contributors maintainers changelog changes history news todo thanks credits
		owners codeowners patents security contributing code_of_conduct`,
})

// fileStarts and fileEnds are beginnings and ends of file names, in lower case. The first element that matches a name
// determines the traits.
var (
	fileStarts = []affix{
		{"tsconfig.", manifest}, {"tsconfig-", manifest}, {"requirements", manifest}, {"dockerfile.", manifest},
		{"docker-compose", manifest},
		{"makefile.", manifest}, {"kconfig.", manifest}, {".eslintrc.", manifest}, {".prettierrc.", manifest},
		{".stylelintrc.", manifest},
		{".babelrc.", manifest}, {"gulpfile.", manifest}, {"gruntfile.", manifest}, {"karma.conf.", manifest},
		{"babel.config.", manifest},
		{"test_", test},
	}
	fileEnds = []affix{
		{".gemspec", manifest}, {".csproj", manifest}, {".fsproj", manifest}, {".vbproj", manifest}, {".vcxproj", manifest},
		{".sln", manifest},
		{".cabal", manifest}, {".opam", manifest}, {".dockerfile", manifest}, {".pbxproj", manifest}, {".nimble", manifest},
		{".config.js", manifest}, {".config.ts", manifest}, {".config.mjs", manifest}, {".config.cjs", manifest},
		{".config.mts", manifest},
		{".min.js", vendored}, {".min.css", vendored}, {".map", vendored},
		{"_test.go", test}, {"_test.py", test}, {"_test.dart", test}, {"_test.exs", test}, {"_test.cc", test},
		{"_test.cpp", test},
		{"_test.rb", test}, {"_spec.rb", test}, {"_test.ts", test}, {"_test.rs", test}, {"test.java", test},
		{"tests.java", test}, {"test.kt", test},
		{"tests.cs", test}, {"test.php", test}, {"_unittest.cc", test}, {".snap", fixture}, {".golden", fixture},
	}
	// innerParts are parts of a name between the last two dots, such as "test" in "a.test.ts".
	innerParts = words(map[traits]string{
		test: "test tests spec e2e stories bench", vendored: "generated",
	})
)

// affix is a beginning or an end of file names, and the traits of files with such a name.
type affix struct {
	text string
	is   traits
}

// extensions are the parts of file names after the last dot, in lower case.
var extensions = words(map[traits]string{
	source: `
		go c h cc cpp cxx hh hpp hxx inl m mm rs py pyi pyx rb php java kt kts scala groovy clj cljs cs fs vb swift dart lua pl pm r jl
		ex exs erl hrl hs lhs ml mli elm nim zig v sv vhd d pas ada adb ads f f90 f95 js jsx mjs cjs ts tsx mts cts vue svelte astro sh bash
		zsh fish ps1 bat cmd awk el lisp scm rkt tcl s asm cu cuh cl glsl hlsl wgsl metal sol vy move proto thrift capnp fbs y l rl tf hcl
		nix bzl bazel star gn gni cmake mk am ac m4 in gradle sbt`,
	source | later: `
		css scss sass less styl html htm xhtml tmpl tpl gotmpl hbs ejs erb jinja j2 mustache pug liquid sql graphql gql json json5 jsonc yaml yml
		toml ini cfg conf properties env xml xsd xsl plist ui qml strings resx dts dtsi ld lds def graphqls cue jsonnet libsonnet rego ipynb`,
	doc: `md mdx markdown rst adoc asciidoc txt text tex texi texinfo pod org 1 2 3 4 5 6 7 8 9 man`,
	media: `
		png jpg jpeg gif webp avif bmp ico icns tif tiff svg psd ai eps pdf ps heic xcf sketch fig blend fbx obj gltf glb stl dae
		mp3 mp4 m4a m4v mov avi mkv webm wav ogg oga ogv flac aac mid ttf otf woff woff2 eot
		zip gz tgz bz2 tbz xz txz zst lz4 7z rar tar jar war ear aar whl egg gem deb rpm apk ipa dmg iso msi cab crate nupkg
		exe dll so dylib a o lib pdb class pyc wasm node bin dat img rom elf pack idx db sqlite sqlite3 mdb parquet avro orc npy npz h5 hdf5
		pkl pt pth onnx tflite safetensors gguf ckpt pb tfrecord pcap swf docx xlsx pptx doc xls ppt odt ods odp keystore jks p12 pfx`,
	vendored: `csv tsv jsonl ndjson log lock dump`,
})

// directories are names of directories, in lower case. Their traits apply to all files below them, at any depth.
var directories = words(map[traits]string{
	vendored: `
		node_modules vendor third_party third-party thirdparty 3rdparty 3rd-party bower_components jspm_packages pods carthage
		.yarn dist .next __pycache__ .venv venv site-packages __generated__ generated`,
	settings: `
		.github .gitlab .circleci .buildkite .woodpecker .ci .claude .cursor .codex .gemini .devcontainer .vscode .cargo .mvn .config
		.husky .changeset`,
	test: `
		test tests __tests__ e2e spec specs integration-tests integration_tests unittests androidtest regress selftests
		bench benches benchmark benchmarks`,
	fixture: `testdata test-data test_data fixtures fixture __fixtures__ __mocks__ __snapshots__ snapshots goldens cassettes corpus`,
	doc: `
		doc docs documentation man manual example examples sample samples demo demos tutorial tutorials website
		issue_template pull_request_template changelogs release-notes`,
	scripts: `bin script scripts tools hack contrib ci build-scripts`,
})
