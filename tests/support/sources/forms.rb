module M
  class A < B
    attr_reader :x
    def initialize(a); end
    def self.cls; end
    def ==(o); end
    def x=(v); end
    def q?; end
    class << self
      def meta; end
    end
  end
  class N::C; end
end
def top = 1
