# Installs a formula of Homebrew from local archives, without Homebrew: it plays the methods that our formula calls, chooses the archive
# of the platform, checks its checksum, unpacks it, runs `install` and, if the program can be started here, `test`.
#
#   ruby release/formula.rb FORMULA FOLDER_OF_ARCHIVES SYSTEM PROCESSOR      SYSTEM: macos, linux; PROCESSOR: arm, intel
require "digest"
require "fileutils"
require "open3"
require "pathname"
require "tmpdir"

FILE, ARCHIVES, SYSTEM, PROCESSOR = ARGV

# What `bin` is in a formula: a folder with a method that moves programs into it.
class BinFolder < Pathname
  def install(name)
    mkpath
    FileUtils.mv(name, self / name)
    (self / name).chmod(0o755)
  end
end

# The methods of Homebrew that our formula calls.
class Formula
  class << self
    attr_reader :values, :test_block

    %i[desc homepage version license url sha256].each do |name|
      define_method(name) { |value| (@values ||= {})[name] = value }
    end

    def on_macos = SYSTEM == "macos" && yield
    def on_linux = SYSTEM == "linux" && yield
    def on_arm = PROCESSOR == "arm" && yield
    def on_intel = PROCESSOR == "intel" && yield
    def test(&block) = @test_block = block
  end

  def initialize(prefix) = @prefix = Pathname.new(prefix)
  def bin = BinFolder.new(@prefix / "bin")
  def version = self.class.values[:version]
  def starts? = SYSTEM == "linux" && PROCESSOR == "intel"

  def shell_output(command)
    output, status = Open3.capture2(command)
    raise "#{command} ended with #{status}" unless status.success?

    output
  end

  def generate_completions_from_executable(program, command, shells:)
    shells.each { |shell| raise "no completion for #{shell}" if starts? && shell_output("#{program} #{command} #{shell}").empty? }
  end

  def assert_match(text, output) = output.include?(text) || raise("#{output.inspect} does not contain #{text.inspect}")
end

load FILE
values = KubectlSpillway.values
missing = %i[desc homepage version license url sha256].reject { |name| values[name] }
raise "the formula has no #{missing.join(", ")} for #{SYSTEM} on #{PROCESSOR}" unless missing.empty?

archive = File.join(File.expand_path(ARCHIVES), File.basename(values[:url]))
found = Digest::SHA256.file(archive).hexdigest
raise "#{archive} has the checksum #{found}, and the formula has #{values[:sha256]}" unless found == values[:sha256]

Dir.mktmpdir do |folder|
  Dir.mkdir("#{folder}/source")
  Dir.chdir("#{folder}/source") do
    raise "cannot unpack #{archive}" unless system("tar", "-xzf", archive)

    formula = KubectlSpillway.new("#{folder}/prefix")
    formula.install
    raise "the program is not installed" unless (formula.bin / "kubectl-spillway").executable?

    formula.instance_eval(&KubectlSpillway.test_block) if formula.starts?
    puts "installed #{File.basename(archive)}#{" and ran its test" if formula.starts?}"
  end
end
